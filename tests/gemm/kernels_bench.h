/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_GEMM_KERNELS_BENCH_H
#define TEST_GEMM_KERNELS_BENCH_H
/*
 * Rates of kernels with their panels in the first cache, and in the same run, turn by turn, that of
 * their instruction alone. Ratios are medians of neighbouring measurements.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../bench/peak.h"
#include "base/clock.h"
#include "cpu/cpu.h"
#include "gemm/kernels.h"
#include "gemm/panels.h"

enum { BENCH_ROUNDS = 21, BENCH_NS = 1500000 };

typedef struct bench {
    const twi_gemm_kernel_t *kernel;
    bench_peak_t peak;
    twi_gemm_call_t call;
    int64_t k;
    double ops; /* of a call */
} bench_t;

/* As many steps as leave the panels and the sums in the first cache: k is 128 to 512. */
static int64_t bench_k(const twi_gemm_kernel_t *kernel)
{
    const long cache = sysconf(_SC_LEVEL1_DCACHE_SIZE);
    const size_t room = (cache > 0 ? (size_t)cache : 32768) / 8 * 7;
    int64_t k = 512;
    while (k > 128 && panels_bytes_a(kernel, k) + panels_bytes_b(kernel, k) + panels_bytes_acc(kernel) > room)
        k -= 64;
    return k;
}

static void *bench_panel(const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind, int64_t k, bool is_a)
{
    panels_random_t random = {.state = 1};
    const size_t bytes = is_a ? panels_bytes_a(kernel, k) : panels_bytes_b(kernel, k);
    void *values = panels_new(kind, (int64_t)k * TWI_GEMM_NR_MAX, PANELS_NORMAL, &random), *panel = NULL;
    CHECK_EQ(posix_memalign(&panel, 4096, bytes), 0);
    if (is_a)
        panels_a(kernel, kind, values, k, kernel->mr, k, panel);
    else
        panels_b(kernel, kind, values, kernel->nr, kernel->nr, k, panel);
    free(values);
    return panel;
}

/* Giga-operations a second of about BENCH_NS nanoseconds of calls. */
static double bench_kernel(const bench_t *bench)
{
    const bool amx = bench->kernel->flags & TWI_KERNEL_AMX;
    if (amx)
        twi_gemm_tiles_begin();
    int64_t calls = 0;
    const uint64_t begin = twi_now_ns();
    uint64_t end = begin;
    while (end - begin < BENCH_NS) {
        for (int i = 0; i < 32; i++)
            bench->kernel->run(&bench->call);
        calls += 32;
        end = twi_now_ns();
    }
    if (amx)
        twi_gemm_tiles_end();
    return (double)calls * bench->ops / (double)(end - begin);
}

static bench_peak_t bench_instruction(const twi_gemm_kernel_t *kernel)
{
    const bool integer = kernel->serves == 1u << TWI_GEMM_S8;
    switch (kernel->isa) {
    case TWI_ISA_AMX:
        return integer ? BENCH_PEAK_TDPBSSD_AMX : BENCH_PEAK_TDPBF16_AMX;
    case TWI_ISA_AVX512BF16:
        return BENCH_PEAK_DPBF16_AVX512;
    case TWI_ISA_AVX512:
        return kernel->flags & TWI_KERNEL_VNNI ? BENCH_PEAK_DPBUSD_AVX512
               : integer                       ? BENCH_PEAK_MADD_AVX512
                                               : BENCH_PEAK_FMA_AVX512;
    case TWI_ISA_AVX2:
        return integer ? BENCH_PEAK_MADD_AVX2 : BENCH_PEAK_FMA_AVX2;
    default:
        return integer ? BENCH_PEAK_MADD_PORTABLE : BENCH_PEAK_FMA_PORTABLE;
    }
}

static double bench_peak(bench_peak_t instruction)
{
    uint64_t ops = 0;
    const uint64_t begin = twi_now_ns();
    uint64_t end = begin;
    while (end - begin < BENCH_NS) {
        ops += bench_peak_run(instruction, 1000);
        end = twi_now_ns();
    }
    return (double)ops / (double)(end - begin);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, BENCH_ROUNDS, sizeof *values, by_value);
    return values[BENCH_ROUNDS / 2];
}

static void bench_row(const bench_t *bench)
{
    double rates[BENCH_ROUNDS], peaks[BENCH_ROUNDS], ratios[BENCH_ROUNDS];
    (void)bench_kernel(bench);
    for (int i = 0; i < BENCH_ROUNDS; i++) {
        rates[i] = bench_kernel(bench);
        peaks[i] = bench_peak(bench->peak);
        ratios[i] = rates[i] / peaks[i];
    }
    printf("%-46s k %4lld %9.1f GFLOP/s  %-15s %9.1f  ratio %.3f\n", bench->kernel->name, (long long)bench->k,
           median(rates), bench_peak_name(bench->peak), median(peaks), median(ratios));
}

static void bench_one(const twi_gemm_kernel_t *kernel)
{
    static _Alignas(64) int32_t excess[TWI_GEMM_NR_MAX]; /* known, as to all calls of a column but the first */
    const twi_gemm_kind_t kind = (twi_gemm_kind_t)__builtin_ctz(kernel->serves);
    const int64_t k = bench_k(kernel);
    void *a = bench_panel(kernel, kind, k, true), *b = bench_panel(kernel, kind, k, false), *acc = NULL;
    CHECK_EQ(posix_memalign(&acc, 4096, panels_bytes_acc(kernel)), 0);
    const bench_t bench = {
        .kernel = kernel,
        .peak = bench_instruction(kernel),
        .call = {.a = a,
                 .b = b,
                 .acc = acc,
                 .excess = excess,
                 .excess_known = true,
                 .panels = 1,
                 .steps = panels_steps(kernel, k),
                 .rows = kernel->mr},
        .k = k,
        .ops = 2.0 * kernel->mr * kernel->nr * (double)k,
    };
    bench_row(&bench);
    free(a);
    free(b);
    free(acc);
}

/* A line for every usable row whose name contains the pattern. */
static inline void bench_kernels(const char *pattern)
{
    for (int i = 0; i < twi_gemm_n_kernels; i++) {
        const twi_gemm_kernel_t *kernel = &twi_gemm_kernels[i];
        if (strstr(kernel->name, pattern) && twi_gemm_kernel_usable(kernel, twi_cpu_isa_machine()))
            bench_one(kernel);
    }
}

#endif
