/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_GEMM_CONVERT_SETS_H
#define TWI_GEMM_CONVERT_SETS_H
/* The functions of each level, of which convert.c makes the sets. What they do: convert.h. */
#include <stdint.h>

/*
 * Asks for what a loop over weights will read 4 KiB later, for they come from memory and are used once:
 * this halves the time of products with few rows. May lie past the end.
 */
static inline void twi_convert_ahead(const void *src)
{
    __builtin_prefetch((const void *)((uintptr_t)src + 4096));
}

#define TWI_CONVERT_PROTOTYPES(isa)                                                                                \
    void twi_gemm_widen_bf16__##isa(float *dst, const uint16_t *src, int64_t n);                                   \
    void twi_gemm_widen_f16__##isa(float *dst, const uint16_t *src, int64_t n);                                    \
    void twi_gemm_widen_s8__##isa(int16_t *dst, const int8_t *src, int64_t n);                                     \
    void twi_gemm_bias_s8__##isa(uint8_t *dst, const int8_t *src, int64_t n);                                      \
    void twi_gemm_split_f16__##isa(uint16_t *hi, uint16_t *lo, const uint16_t *src, int64_t n);                    \
    void twi_gemm_dequant_bf16__##isa(uint16_t *dst, const int8_t *src, int64_t rows, int64_t period,              \
                                      const float *scale, const float *offset);                                    \
    void twi_gemm_dequant_f16__##isa(uint16_t *dst, const int8_t *src, int64_t rows, int64_t period,               \
                                     const float *scale, const float *offset);                                     \
    void twi_gemm_transpose__##isa(void *dst, int64_t ld_dst, const void *src, int64_t ld_src_bytes, int64_t rows, \
                                   int64_t units, int unit_bytes);                                                 \
    void twi_gemm_interleave__##isa(void *dst, const void *const *src, int kb, int64_t n, int item_bytes)

TWI_CONVERT_PROTOTYPES(portable);
#if defined(__x86_64__)
TWI_CONVERT_PROTOTYPES(avx2);
TWI_CONVERT_PROTOTYPES(avx512);
void twi_gemm_split_f16__avx512bf16(uint16_t *hi, uint16_t *lo, const uint16_t *src, int64_t n);
void twi_gemm_dequant_bf16__avx512bf16(uint16_t *dst, const int8_t *src, int64_t rows, int64_t period,
                                       const float *scale, const float *offset);
#endif

#endif
