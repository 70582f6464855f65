/* SPDX-License-Identifier: Apache-2.0 */
/* Whole lines, each by one store, so that it leaves at once. Any thread. */
#if defined(__x86_64__)
#include "gemm/stream.h"

#include <immintrin.h>

enum { LINE_BYTES = 64 };

void twi_gemm_stream__avx512(void *const *to, const void *from, int n)
{
    for (int i = 0; i < n; i++)
        _mm512_stream_si512(to[i], _mm512_load_si512((const char *)from + (long)i * LINE_BYTES));
}
#endif
