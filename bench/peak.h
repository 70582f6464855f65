/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_PEAK_H
#define BENCH_PEAK_H
/*
 * The rate of the instructions that matrix kernels are made of: loops that touch no memory, with as
 * many independent sums as it takes to hide the latency. It changes with the clock and with what the
 * neighbours do, so measure it right beside the kernel.
 *
 * The caller knows that the machine has the instruction, and for AMX that the operating system has
 * granted tiles to the process (the library asks for them when it starts). Any thread.
 */
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef enum bench_peak {
    BENCH_PEAK_FMA_PORTABLE,  /* fp32: multiply and add, four lanes */
    BENCH_PEAK_MADD_PORTABLE, /* integers: pairs of int16 (pmaddwd and paddd) on x86, else int32 */
    BENCH_PEAK_FMA_AVX2,
    BENCH_PEAK_MADD_AVX2,
    BENCH_PEAK_FMA_AVX512,
    BENCH_PEAK_MADD_AVX512,
    BENCH_PEAK_DPBUSD_AVX512, /* VNNI */
    BENCH_PEAK_DPBF16_AVX512,
    BENCH_PEAK_TDPBF16_AMX,
    BENCH_PEAK_TDPBSSD_AMX,
    BENCH_PEAK_COUNT,
} bench_peak_t;

static inline const char *bench_peak_name(bench_peak_t instruction)
{
    static const char *const names[BENCH_PEAK_COUNT] = {
        [BENCH_PEAK_FMA_PORTABLE] = "mul+add",        [BENCH_PEAK_MADD_PORTABLE] = "madd",
        [BENCH_PEAK_FMA_AVX2] = "avx2 fma",           [BENCH_PEAK_MADD_AVX2] = "avx2 pmaddwd",
        [BENCH_PEAK_FMA_AVX512] = "avx512 fma",       [BENCH_PEAK_MADD_AVX512] = "avx512 pmaddwd",
        [BENCH_PEAK_DPBUSD_AVX512] = "avx512 dpbusd", [BENCH_PEAK_DPBF16_AVX512] = "avx512 dpbf16",
        [BENCH_PEAK_TDPBF16_AMX] = "amx tdpbf16",     [BENCH_PEAK_TDPBSSD_AMX] = "amx tdpbssd",
    };
    return names[instruction];
}

/* ---- Vectors ----------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#define BENCH_PEAK_REGISTER "+v"
#elif defined(__aarch64__)
#define BENCH_PEAK_REGISTER "+w"
#else
#define BENCH_PEAK_REGISTER "+m"
#endif

/* Makes the compiler forget what a value is, and believe that it is needed. No instruction. */
#define BENCH_PEAK_HIDE(value) __asm__ volatile("" : BENCH_PEAK_REGISTER(value))

#define BENCH_PEAK_12(X, step) \
    X(0, step)                 \
    X(1, step)                 \
    X(2, step) X(3, step) X(4, step) X(5, step) X(6, step) X(7, step) X(8, step) X(9, step) X(10, step) X(11, step)
#define BENCH_PEAK_24(X, step) \
    BENCH_PEAK_12(X, step)     \
    X(12, step)                \
    X(13, step)                \
    X(14, step)                \
    X(15, step) X(16, step) X(17, step) X(18, step) X(19, step) X(20, step) X(21, step) X(22, step) X(23, step)

#define BENCH_PEAK_DECLARE(i, vector) vector s##i = a;
#define BENCH_PEAK_STEP(i, step) \
    BENCH_PEAK_HIDE(a);          \
    s##i = step(s##i, a, b);
#define BENCH_PEAK_KEEP(i, unused) BENCH_PEAK_HIDE(s##i);

/* A function of so many turns, each of which changes every sum once; a and b are the factors. */
#define BENCH_PEAK_FUNCTION(name, attributes, vector, list, first, second, step)                            \
    attributes static inline void bench_peak_##name(uint64_t turns)                                         \
    {                                                                                                       \
        vector a = first, b = second;                                                                       \
        list(BENCH_PEAK_DECLARE, vector) for (uint64_t turn = 0; turn < turns;                              \
                                              turn++){list(BENCH_PEAK_STEP, step)} list(BENCH_PEAK_KEEP, 0) \
    }

typedef float bench_peak_f32x4_t __attribute__((vector_size(16)));
#define BENCH_PEAK_F32X4(x) ((bench_peak_f32x4_t){x, x, x, x})
#define BENCH_PEAK_MUL_ADD(s, a, b) ((s) + (a) * (b))
BENCH_PEAK_FUNCTION(fma_portable, , bench_peak_f32x4_t, BENCH_PEAK_12, BENCH_PEAK_F32X4(0.7f), BENCH_PEAK_F32X4(-0.3f),
                    BENCH_PEAK_MUL_ADD)

#if defined(__x86_64__)
#define BENCH_PEAK_TARGET(features) __attribute__((target(features)))
#define BENCH_PEAK_AVX2 BENCH_PEAK_TARGET("avx2,fma")
#define BENCH_PEAK_AVX512 BENCH_PEAK_TARGET("avx512f,avx512bw,avx512vl")

#define BENCH_PEAK_MADD_128(s, a, b) _mm_add_epi32(s, _mm_madd_epi16(a, b))
BENCH_PEAK_FUNCTION(madd_portable, , __m128i, BENCH_PEAK_12, _mm_set1_epi16(77), _mm_set1_epi16(-3),
                    BENCH_PEAK_MADD_128)

#define BENCH_PEAK_FMA_256(s, a, b) _mm256_fmadd_ps(a, b, s)
BENCH_PEAK_FUNCTION(fma_avx2, BENCH_PEAK_AVX2, __m256, BENCH_PEAK_12, _mm256_set1_ps(0.7f), _mm256_set1_ps(-0.3f),
                    BENCH_PEAK_FMA_256)

#define BENCH_PEAK_MADD_256(s, a, b) _mm256_add_epi32(s, _mm256_madd_epi16(a, b))
BENCH_PEAK_FUNCTION(madd_avx2, BENCH_PEAK_AVX2, __m256i, BENCH_PEAK_12, _mm256_set1_epi16(77), _mm256_set1_epi16(-3),
                    BENCH_PEAK_MADD_256)

#define BENCH_PEAK_FMA_512(s, a, b) _mm512_fmadd_ps(a, b, s)
BENCH_PEAK_FUNCTION(fma_avx512, BENCH_PEAK_AVX512, __m512, BENCH_PEAK_24, _mm512_set1_ps(0.7f), _mm512_set1_ps(-0.3f),
                    BENCH_PEAK_FMA_512)

#define BENCH_PEAK_MADD_512(s, a, b) _mm512_add_epi32(s, _mm512_madd_epi16(a, b))
BENCH_PEAK_FUNCTION(madd_avx512, BENCH_PEAK_AVX512, __m512i, BENCH_PEAK_24, _mm512_set1_epi16(77),
                    _mm512_set1_epi16(-3), BENCH_PEAK_MADD_512)

#define BENCH_PEAK_DPBUSD(s, a, b) _mm512_dpbusd_epi32(s, a, b)
BENCH_PEAK_FUNCTION(dpbusd_avx512, BENCH_PEAK_TARGET("avx512f,avx512bw,avx512vl,avx512vnni"), __m512i, BENCH_PEAK_24,
                    _mm512_set1_epi8(77), _mm512_set1_epi8(-3), BENCH_PEAK_DPBUSD)

/* In assembly: the types of the intrinsic differ from those of the sums, and between compilers. */
#define BENCH_PEAK_DPBF16(s, a, b)                                    \
    (__extension__({                                                  \
        __m512i sum = (s);                                            \
        __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); \
        sum;                                                          \
    }))
BENCH_PEAK_FUNCTION(dpbf16_avx512, BENCH_PEAK_AVX512, __m512i, BENCH_PEAK_24, _mm512_set1_epi16(0x3f33),
                    _mm512_set1_epi16((short)0xbe99), BENCH_PEAK_DPBF16)
#else
typedef int32_t bench_peak_s32x4_t __attribute__((vector_size(16)));
#define BENCH_PEAK_S32X4(x) ((bench_peak_s32x4_t){x, x, x, x})
BENCH_PEAK_FUNCTION(madd_portable, , bench_peak_s32x4_t, BENCH_PEAK_12, BENCH_PEAK_S32X4(7), BENCH_PEAK_S32X4(-3),
                    BENCH_PEAK_MUL_ADD)
#endif

/* ---- Tiles ------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#define BENCH_PEAK_AMX BENCH_PEAK_TARGET("amx-tile,amx-bf16,amx-int8")

/* Eight tiles of 16 rows of 64 bytes; 0..3 are sums, 4 and 5 hold the left factors, 6 and 7 the right ones. */
BENCH_PEAK_AMX static inline void bench_peak_tiles(uint32_t pattern)
{
    _Alignas(64) uint8_t config[64] = {1};
    _Alignas(64) uint32_t data[256];
    for (int tile = 0; tile < 8; tile++) {
        config[16 + 2 * tile] = 64;
        config[48 + tile] = 16;
    }
    for (int i = 0; i < 256; i++)
        data[i] = pattern;
    __asm__ volatile("" : : "r"(config), "r"(data) : "memory"); /* some compilers' loads do not say what they read */
    _tile_loadconfig(config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, data, 64);
    _tile_loadd(5, data, 64);
    _tile_loadd(6, data, 64);
    _tile_loadd(7, data, 64);
    __asm__ volatile("" : : "r"(config), "r"(data) : "memory");
}

BENCH_PEAK_AMX static inline void bench_peak_tdpbf16_amx(uint64_t turns)
{
    bench_peak_tiles(0x3e993f33u);
    for (uint64_t turn = 0; turn < turns; turn++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
}

BENCH_PEAK_AMX static inline void bench_peak_tdpbssd_amx(uint64_t turns)
{
    bench_peak_tiles(0x4dfd02b3u);
    for (uint64_t turn = 0; turn < turns; turn++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_release();
}
#endif

/* ---- All of them ------------------------------------------------------------------------------- */

typedef struct bench_peak_loop {
    void (*run)(uint64_t turns);
    uint64_t operations; /* of a turn: two for every product that is added to a sum */
} bench_peak_loop_t;

static inline bench_peak_loop_t bench_peak_loop(bench_peak_t instruction)
{
    switch (instruction) {
#if defined(__x86_64__)
    case BENCH_PEAK_MADD_PORTABLE:
        return (bench_peak_loop_t){bench_peak_madd_portable, 12 * 8 * 2};
    case BENCH_PEAK_FMA_AVX2:
        return (bench_peak_loop_t){bench_peak_fma_avx2, 12 * 8 * 2};
    case BENCH_PEAK_MADD_AVX2:
        return (bench_peak_loop_t){bench_peak_madd_avx2, 12 * 16 * 2};
    case BENCH_PEAK_FMA_AVX512:
        return (bench_peak_loop_t){bench_peak_fma_avx512, 24 * 16 * 2};
    case BENCH_PEAK_MADD_AVX512:
        return (bench_peak_loop_t){bench_peak_madd_avx512, 24 * 32 * 2};
    case BENCH_PEAK_DPBUSD_AVX512:
        return (bench_peak_loop_t){bench_peak_dpbusd_avx512, 24 * 64 * 2};
    case BENCH_PEAK_DPBF16_AVX512:
        return (bench_peak_loop_t){bench_peak_dpbf16_avx512, 24 * 32 * 2};
    case BENCH_PEAK_TDPBF16_AMX:
        return (bench_peak_loop_t){bench_peak_tdpbf16_amx, 4 * 16 * 16 * 32 * 2};
    case BENCH_PEAK_TDPBSSD_AMX:
        return (bench_peak_loop_t){bench_peak_tdpbssd_amx, 4 * 16 * 16 * 64 * 2};
#else
    case BENCH_PEAK_MADD_PORTABLE:
        return (bench_peak_loop_t){bench_peak_madd_portable, 12 * 4 * 2};
#endif
    default:
        return (bench_peak_loop_t){bench_peak_fma_portable, 12 * 4 * 2};
    }
}

/* Runs the loop for so many turns; returns how many operations that was. */
static inline uint64_t bench_peak_run(bench_peak_t instruction, uint64_t turns)
{
    const bench_peak_loop_t loop = bench_peak_loop(instruction);
    loop.run(turns);
    return loop.operations * turns;
}

#endif
