/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_CPU_CPU_H
#define TWI_CPU_CPU_H
/* What the processor can do, what the operating system lets us use of it, and where the cores are. */
#include <stdbool.h>
#include <stddef.h>
#include <tilewire/tilewire.h>

typedef enum twi_isa {
#define TW_ISA(NAME, level, name) TWI_ISA_##NAME = level,
#include "base/isas.def"
#undef TW_ISA
} twi_isa_t;

/* The highest level that the machine has, the OS permits and TILEWIRE_ISA allows. Decided once. */
twi_isa_t twi_cpu_isa(void);
/* The same without the cap. */
twi_isa_t twi_cpu_isa_machine(void);
const char *twi_isa_name(twi_isa_t isa);
/* Whether AVX-512 VNNI is there, which some machines of level avx512 have. Integer sums are exact
 * either way, so that it makes no level of its own. */
bool twi_cpu_vnni(void);

/* CPUs in the calling thread's affinity mask, at least 1. */
int twi_cpu_allowed(void);

typedef struct twi_topology {
    const char *source; /* "hwloc" or "sysfs" */
    int packages;
    int numa_nodes;
    int cores;       /* physical cores */
    int cpus;        /* hardware threads online */
    size_t l2_bytes; /* of one core; 0: unknown */
    size_t l3_bytes; /* of one cache; 0: unknown */
} twi_topology_t;

/* Read once. Every count is at least 1. */
const twi_topology_t *twi_cpu_topology(void);

/* Rows of sections "cpu" and "topology" for tw_info; false past the end. The strings are static. */
bool twi_cpu_row(unsigned index, tw_info_row_t *row_out);

#endif
