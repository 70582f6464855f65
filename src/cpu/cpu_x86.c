/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Feature detection by CPUID and XGETBV. A feature counts only if the operating system saves the
 * registers it needs; AMX has to be asked for, once a process. On other processors everything is
 * portable.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu/cpu_internal.h"

#if defined(__x86_64__)
#include <cpuid.h>

enum { REG_A, REG_B, REG_C, REG_D };
enum { STATE_YMM, STATE_ZMM, STATE_TILE, STATE_COUNT };

#define XCR0_YMM 0x6u      /* xmm, ymm */
#define XCR0_ZMM 0xe6u     /* and opmask, zmm */
#define XCR0_TILE 0x60000u /* tile configuration, tile data */
#define ARCH_REQ_XCOMP_PERM_ 0x1023
#define XFEATURE_XTILEDATA_ 18

/* One row a feature: where CPUID says it, what state it needs, and the level that requires it. */
typedef struct feature {
    const char *name;
    uint32_t leaf, subleaf;
    int reg, bit;
    int state;
    twi_isa_t level;
} feature_t;

static const feature_t features[] = {
    {"fma", 1, 0, REG_C, 12, STATE_YMM, TWI_ISA_AVX2},
    {"f16c", 1, 0, REG_C, 29, STATE_YMM, TWI_ISA_AVX2},
    {"avx2", 7, 0, REG_B, 5, STATE_YMM, TWI_ISA_AVX2},
    {"avx512f", 7, 0, REG_B, 16, STATE_ZMM, TWI_ISA_AVX512},
    {"avx512bw", 7, 0, REG_B, 30, STATE_ZMM, TWI_ISA_AVX512},
    {"avx512dq", 7, 0, REG_B, 17, STATE_ZMM, TWI_ISA_AVX512},
    {"avx512vl", 7, 0, REG_B, 31, STATE_ZMM, TWI_ISA_AVX512},
    {"avx512_vnni", 7, 0, REG_C, 11, STATE_ZMM, TWI_ISA_AVX512BF16},
    {"avx512_bf16", 7, 1, REG_A, 5, STATE_ZMM, TWI_ISA_AVX512BF16},
    {"amx_tile", 7, 0, REG_D, 24, STATE_TILE, TWI_ISA_AMX},
    {"amx_bf16", 7, 0, REG_D, 22, STATE_TILE, TWI_ISA_AMX},
    {"amx_int8", 7, 0, REG_D, 25, STATE_TILE, TWI_ISA_AMX},
};
enum { FEATURE_COUNT = sizeof features / sizeof features[0] };

static const feature_t tile = {"amx_tile", 7, 0, REG_D, 24, STATE_TILE, TWI_ISA_AMX};

static bool has_bit(const twi_cpu_words_t *words, const feature_t *feature)
{
    const uint32_t *reg = feature->leaf == 1 ? words->leaf_1 : words->leaf_7[feature->subleaf];
    return (reg[feature->reg] >> feature->bit) & 1u;
}

static bool saves(const twi_cpu_words_t *words, uint64_t state)
{
    return (words->xcr0 & state) == state;
}

/* ---- What the machine says ---------------------------------------------------------------------- */

static void read_leaf(uint32_t leaf, uint32_t subleaf, uint32_t reg_out[4])
{
    uint32_t reg[4];
    if (__get_cpuid_count(leaf, subleaf, &reg[0], &reg[1], &reg[2], &reg[3]))
        memcpy(reg_out, reg, sizeof reg);
}

static uint64_t read_xcr0(const uint32_t leaf_1[4])
{
    if (!((leaf_1[REG_C] >> 27) & 1u)) /* OSXSAVE */
        return 0;
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return ((uint64_t)high << 32) | low;
}

static bool request_amx(void)
{
#ifdef SYS_arch_prctl
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM_, XFEATURE_XTILEDATA_) == 0;
#else
    return false;
#endif
}

static void read_words(twi_cpu_words_t *words_out)
{
    twi_cpu_words_t words = {.amx_permitted = false};
    read_leaf(1, 0, words.leaf_1);
    read_leaf(7, 0, words.leaf_7[0]);
    if (words.leaf_7[0][REG_A] >= 1) /* says how many subleaves there are */
        read_leaf(7, 1, words.leaf_7[1]);
    words.xcr0 = read_xcr0(words.leaf_1);
    if (has_bit(&words, &tile) && saves(&words, XCR0_TILE))
        words.amx_permitted = request_amx();
    *words_out = words;
}

static void read_model(char *model_out, size_t bytes)
{
    uint32_t reg[12] = {0};
    for (uint32_t i = 0; i < 3; i++) {
        if (!__get_cpuid(0x80000002u + i, &reg[4 * i], &reg[4 * i + 1], &reg[4 * i + 2], &reg[4 * i + 3]))
            break;
    }
    char text[sizeof reg + 1] = {0};
    memcpy(text, reg, sizeof reg);
    const char *start = text + strspn(text, " ");
    (void)snprintf(model_out, bytes, "%s", *start != '\0' ? start : "x86-64");
}

/* ---- What may be used --------------------------------------------------------------------------- */

static void append_word(char *text, size_t bytes, const char *word)
{
    const size_t used = strlen(text);
    (void)snprintf(text + used, bytes - used, "%s%s", used > 0 ? " " : "", word);
}

void twi_cpu_decide(const twi_cpu_words_t *words, twi_cpu_detected_t *found_out)
{
    const bool usable[STATE_COUNT] = {
        [STATE_YMM] = saves(words, XCR0_YMM),
        [STATE_ZMM] = saves(words, XCR0_ZMM),
        [STATE_TILE] = has_bit(words, &tile) && saves(words, XCR0_TILE) && words->amx_permitted,
    };
    twi_cpu_detected_t found = {.isa = TWI_ISA_AMX};
    found.amx = usable[STATE_TILE] ? "granted" : has_bit(words, &tile) ? "refused" : "absent";
    for (int i = 0; i < FEATURE_COUNT; i++) {
        const feature_t *feature = &features[i];
        if (usable[feature->state] && has_bit(words, feature))
            append_word(found.features, sizeof found.features, feature->name);
        else if (found.isa >= feature->level)
            found.isa = (twi_isa_t)(feature->level - 1);
    }
    found.vnni = strstr(found.features, "avx512_vnni") != NULL;
    *found_out = found;
}

void twi_cpu_detect(twi_cpu_detected_t *detected_out)
{
    twi_cpu_words_t words;
    read_words(&words);
    twi_cpu_decide(&words, detected_out);
    read_model(detected_out->model, sizeof detected_out->model);
}

#else

void twi_cpu_detect(twi_cpu_detected_t *detected_out)
{
    *detected_out = (twi_cpu_detected_t){.isa = TWI_ISA_PORTABLE, .amx = "absent", .model = "not x86-64"};
}

#endif

static twi_cpu_detected_t g_detected;
static pthread_once_t g_once = PTHREAD_ONCE_INIT;

static void detect_once(void)
{
    twi_cpu_detect(&g_detected);
}

const twi_cpu_detected_t *twi_cpu_detected(void)
{
    (void)pthread_once(&g_once, detect_once);
    return &g_detected;
}
