/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions with AVX-512 F and BW. Any thread. */
#if defined(__x86_64__)
#include <immintrin.h>

#define RED_NAME avx512
#define RED_ISA TWI_ISA_AVX512
#define RED_BYTES 64
#define RED_MAX(bits, a, b) (u32v) _mm512_max_epi##bits((__m512i)(a), (__m512i)(b))
#define RED_MIN(bits, a, b) (u32v) _mm512_min_epi##bits((__m512i)(a), (__m512i)(b))
#define RED_HALVES(x, lo, hi)                                             \
    (*(lo) = (u32v)_mm512_cvtph_ps(_mm512_castsi512_si256((__m512i)(x))), \
     *(hi) = (u32v)_mm512_cvtph_ps(_mm512_extracti64x4_epi64((__m512i)(x), 1)))
#define RED_TO_HALF(x) _mm512_cvtps_ph((__m512)(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define RED_JOINED(lo, hi) (u32v) _mm512_inserti64x4(_mm512_castsi256_si512(RED_TO_HALF(lo)), RED_TO_HALF(hi), 1)
/* The table says: keep the first operand if the second is a quiet or signalling NaN, else take it. */
#define RED_ONE_NAN(x)                                                                         \
    (u32v) _mm512_fixupimm_ps(_mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)), (__m512)(x), \
                              _mm512_set1_epi32(0x11111100), 0)
#define RED_STREAM(p, x) _mm512_stream_si512((__m512i *)(p), (__m512i)(x))
#define RED_FENCE() _mm_sfence()

#include "coll/reduce_kernels.h"
#endif
