/* SPDX-License-Identifier: Apache-2.0 */
/* Whole lines, each by one store, so that it leaves at once. Any thread. */
#if defined(__x86_64__)
#include "gemm/stream.h"

#include <immintrin.h>

void twi_gemm_stream__avx512(const twi_gemm_move_t *move)
{
    const char *from = move->from;
    char *to = move->to;
    for (int i = 0; i < move->n; i++, from += move->from_step, to += move->to_step)
        _mm512_stream_si512((void *)to, _mm512_load_si512(from));
}
#endif
