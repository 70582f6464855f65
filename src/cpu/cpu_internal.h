/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_CPU_CPU_INTERNAL_H
#define TWI_CPU_CPU_INTERNAL_H
/* Pieces of the cpu layer that its own files and its test share. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cpu/cpu.h"

typedef struct twi_cpu_detected {
    twi_isa_t isa;      /* highest level with all of its features usable */
    bool vnni;          /* AVX-512 VNNI is usable, whatever the level */
    const char *amx;    /* "granted", "refused" (by the OS) or "absent" */
    char model[64];     /* the processor's own name for itself */
    char features[256]; /* names of the features we look at and may use, separated by blanks */
} twi_cpu_detected_t;

#if defined(__x86_64__)

/* What CPUID and XGETBV say: registers in the order a, b, c, d, zeroes where nothing is said. */
typedef struct twi_cpu_words {
    uint32_t leaf_1[4];
    uint32_t leaf_7[2][4];
    uint64_t xcr0;
    bool amx_permitted; /* the OS was asked, and allows it */
} twi_cpu_words_t;

/* What may be used, all but the model. Pure. */
void twi_cpu_decide(const twi_cpu_words_t *words, twi_cpu_detected_t *found_out);

#endif

/* Asks the processor and the OS; requests the AMX permission. Pure apart from that. */
void twi_cpu_detect(twi_cpu_detected_t *detected_out);

/* The result of twi_cpu_detect, made once. */
const twi_cpu_detected_t *twi_cpu_detected(void);

/* Reads `root`/cpu and `root`/node as Linux lays them out below /sys/devices/system. */
void twi_topology_sysfs(const char *root, twi_topology_t *topology_out);

#endif
