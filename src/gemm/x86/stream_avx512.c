/* SPDX-License-Identifier: Apache-2.0 */
/* Whole lines, each by one store, so that it leaves at once. Any thread. */
#if defined(__x86_64__)
#include "gemm/stream.h"

#include <immintrin.h>

enum { LINE_BYTES = 64 };

void twi_gemm_stream__avx512(void *dst, int64_t ld_dst_bytes, const void *src, int64_t rows, int64_t row_bytes)
{
    const char *from = src;
    for (int64_t r = 0; r < rows; r++) {
        char *to = (char *)dst + r * ld_dst_bytes;
        for (int64_t at = 0; at < row_bytes; at += LINE_BYTES, from += LINE_BYTES)
            _mm512_stream_si512((__m512i *)(to + at), _mm512_load_si512(from));
    }
}
#endif
