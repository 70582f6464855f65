/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ISA level in force, and the rows of `tilewire info` about the machine. The rows are made once
 * and never change, so their strings may be handed out.
 */
#include <pthread.h>
#include <stdio.h>

#include "base/config.h"
#include "base/sizes.h"
#include "cpu/cpu_internal.h"

static const char *const isa_names[] = {
#define TW_ISA(NAME, level, name) [level] = name,
#include "base/isas.def"
#undef TW_ISA
};

const char *twi_isa_name(twi_isa_t isa)
{
    const unsigned index = (unsigned)isa;
    return index < sizeof isa_names / sizeof isa_names[0] ? isa_names[index] : "unknown";
}

twi_isa_t twi_cpu_isa_machine(void)
{
    return twi_cpu_detected()->isa;
}

twi_isa_t twi_cpu_isa(void)
{
    return (twi_isa_t)twi_min(twi_cpu_isa_machine(), twi_config()->isa);
}

bool twi_cpu_vnni(void)
{
    return twi_cpu_detected()->vnni;
}

enum { NUMBER_BYTES = 24 };

typedef struct numbers {
    char allowed[NUMBER_BYTES], packages[NUMBER_BYTES], numa_nodes[NUMBER_BYTES], cores[NUMBER_BYTES];
    char cpus[NUMBER_BYTES], l2[NUMBER_BYTES], l3[NUMBER_BYTES];
} numbers_t;

static numbers_t g_numbers;
static tw_info_row_t g_rows[16];
static unsigned g_n_rows;
static pthread_once_t g_once = PTHREAD_ONCE_INIT;

static const char *number(char *text, int value)
{
    (void)snprintf(text, NUMBER_BYTES, "%d", value);
    return text;
}

static const char *size(char *text, size_t bytes)
{
    if (bytes == 0)
        (void)snprintf(text, NUMBER_BYTES, "unknown");
    else
        (void)snprintf(text, NUMBER_BYTES, "%zuK", bytes >> 10);
    return text;
}

static void add(const char *section, const char *name, const char *value, const char *help)
{
    if (g_n_rows < sizeof g_rows / sizeof g_rows[0])
        g_rows[g_n_rows++] = (tw_info_row_t){.section = section, .name = name, .value = value, .help = help};
}

static void make_rows(void)
{
    const twi_cpu_detected_t *cpu = twi_cpu_detected();
    const twi_topology_t *topology = twi_cpu_topology();
    numbers_t *n = &g_numbers;
    add("cpu", "model", cpu->model, "the processor's name");
    add("cpu", "isa", twi_isa_name(twi_cpu_isa()), "instruction set level in use");
    add("cpu", "isa_machine", twi_isa_name(cpu->isa), "highest level of this machine, without TILEWIRE_ISA");
    add("cpu", "features", cpu->features, "features found that the OS lets us use");
    add("cpu", "amx", cpu->amx, "tile registers: granted, refused (by the OS) or absent");
    add("cpu", "allowed", number(n->allowed, twi_cpu_allowed()), "CPUs that this process may run on");
    add("topology", "source", topology->source, "where the following was read");
    add("topology", "packages", number(n->packages, topology->packages), "sockets");
    add("topology", "numa_nodes", number(n->numa_nodes, topology->numa_nodes), "memory nodes");
    add("topology", "cores", number(n->cores, topology->cores), "physical cores");
    add("topology", "cpus", number(n->cpus, topology->cpus), "hardware threads online");
    add("topology", "l2", size(n->l2, topology->l2_bytes), "second-level cache of a core");
    add("topology", "l3", size(n->l3, topology->l3_bytes), "size of a third-level cache");
}

bool twi_cpu_row(unsigned index, tw_info_row_t *row_out)
{
    (void)pthread_once(&g_once, make_rows);
    if (index >= g_n_rows)
        return false;
    *row_out = g_rows[index];
    return true;
}
