/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a test program one of level amx: linked with kernels whose instructions are those of
 * model_x86.h, it finds that level on every machine with AVX-512 and VNNI, or, where it is built with a model of
 * those too (MODEL_AVX512), with AVX2. On others the cases are skipped as ever. Cases of levels that the machine has
 * are left out: the ordinary program has them. MODEL_NO_VNNI in the environment: a machine without VNNI. Linked with
 * --wrap for the two functions.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu_internal.h"
#include "harness/test.h"

const twi_cpu_detected_t *__real_twi_cpu_detected(void);
const twi_cpu_detected_t *__wrap_twi_cpu_detected(void);
void __real_test_add(const char *name, int seconds, void (*body)(void));
void __wrap_test_add(const char *name, int seconds, void (*body)(void));

#if defined(MODEL_AVX512)
#define MODEL_HAS(cpu) ((cpu).isa >= TWI_ISA_AVX2)
#define MODEL_LOWER "_portable", "_avx2"
#else
#define MODEL_HAS(cpu) ((cpu).isa >= TWI_ISA_AVX512 && (cpu).vnni)
#define MODEL_LOWER "_portable", "_avx2", "_avx512", "_avx512vnni"
#endif

static twi_cpu_detected_t g_detected;
static pthread_once_t g_once = PTHREAD_ONCE_INIT;

static void detect_once(void)
{
    g_detected = *__real_twi_cpu_detected();
    if (MODEL_HAS(g_detected)) {
        g_detected.isa = TWI_ISA_AMX;
        g_detected.vnni = getenv("MODEL_NO_VNNI") == NULL;
        g_detected.amx = "granted";
    }
}

const twi_cpu_detected_t *__wrap_twi_cpu_detected(void)
{
    (void)pthread_once(&g_once, detect_once);
    return &g_detected;
}

static bool ends_with(const char *name, const char *end)
{
    const size_t length = strlen(name), n = strlen(end);
    return length >= n && strcmp(name + length - n, end) == 0;
}

/* Before main, for every TEST. */
void __wrap_test_add(const char *name, int seconds, void (*body)(void))
{
    static const char *const lower[] = {MODEL_LOWER};
    for (size_t i = 0; i < sizeof lower / sizeof lower[0]; i++)
        if (ends_with(name, lower[i]))
            return;
    __real_test_add(name, seconds, body);
}
