/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions with AVX2 and F16C. Any thread. */
#if defined(__x86_64__)
#include <immintrin.h>

#define RED_NAME avx2
#define RED_ISA TWI_ISA_AVX2
#define RED_BYTES 32
#define RED_MAX(bits, a, b) (u32v) _mm256_max_epi##bits((__m256i)(a), (__m256i)(b))
#define RED_MIN(bits, a, b) (u32v) _mm256_min_epi##bits((__m256i)(a), (__m256i)(b))
#define RED_HALVES(x, lo, hi)                                             \
    (*(lo) = (u32v)_mm256_cvtph_ps(_mm256_castsi256_si128((__m256i)(x))), \
     *(hi) = (u32v)_mm256_cvtph_ps(_mm256_extracti128_si256((__m256i)(x), 1)))
#define RED_TO_HALF(x) _mm256_cvtps_ph((__m256)(x), _MM_FROUND_TO_NEAREST_INT)
#define RED_JOINED(lo, hi) (u32v) _mm256_set_m128i(RED_TO_HALF(hi), RED_TO_HALF(lo))
#define RED_ONE_NAN(x)                                                                       \
    (u32v) _mm256_blendv_ps((__m256)(x), _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), \
                            _mm256_cmp_ps((__m256)(x), (__m256)(x), _CMP_UNORD_Q))
#define RED_STREAM(p, x) _mm256_stream_si256((__m256i *)(p), (__m256i)(x))
#define RED_FENCE() _mm_sfence()

#include "coll/reduce_kernels.h"
#endif
