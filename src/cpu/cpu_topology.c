/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the cores are: from hwloc when it is built in and answers, otherwise from sysfs. Read once
 * a process; the affinity of the calling thread is asked anew each time.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu/cpu_internal.h"

#ifdef TWI_HAVE_HWLOC
#include <hwloc.h>
#endif

enum { PATH_BYTES = 512, LIST_BYTES = 8192, CPU_LIMIT = 1 << 16, CACHE_INDEX_LIMIT = 16 };

/* First line of root/name, without its newline; false if there is none. */
static bool read_line(const char *root, const char *name, char *text_out, size_t bytes)
{
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/%s", root, name) >= (int)sizeof path)
        return false;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    const bool got = fgets(text_out, (int)bytes, file) != NULL;
    (void)fclose(file);
    if (got)
        text_out[strcspn(text_out, "\n")] = '\0';
    return got;
}

/* Takes one item of a list like "0-3,8" off *list; false at the end or at anything malformed. */
static bool next_range(const char **list, long *first_out, long *last_out)
{
    char *end;
    const long first = strtol(*list, &end, 10);
    if (end == *list || first < 0)
        return false;
    long last = first;
    if (*end == '-') {
        const char *start = end + 1;
        last = strtol(start, &end, 10);
        if (end == start || last < first)
            return false;
    }
    if (last >= CPU_LIMIT)
        return false;
    *list = *end == ',' ? end + 1 : end;
    *first_out = first;
    *last_out = last;
    return true;
}

static int count_list(const char *list)
{
    int count = 0;
    long first, last;
    while (next_range(&list, &first, &last))
        count += (int)(last - first + 1);
    return count;
}

/* True if `cpu` is the first of the list in its topology file, i.e. stands for the whole group. */
static bool leads_group(const char *root, long cpu, const char *file, bool missing)
{
    char name[96], list[LIST_BYTES];
    (void)snprintf(name, sizeof name, "cpu/cpu%ld/topology/%s", cpu, file);
    const char *cursor = list;
    long first, last;
    if (!read_line(root, name, list, sizeof list) || !next_range(&cursor, &first, &last))
        return missing;
    return first == cpu;
}

static size_t parse_size(const char *text)
{
    char *end;
    const unsigned long long value = strtoull(text, &end, 10);
    const int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    return value <= (SIZE_MAX >> shift) ? (size_t)value << shift : 0;
}

static void read_caches(const char *root, long cpu, twi_topology_t *topology)
{
    for (int i = 0; i < CACHE_INDEX_LIMIT; i++) {
        char folder[96], name[160], level[16], size[32];
        (void)snprintf(folder, sizeof folder, "cpu/cpu%ld/cache/index%d", cpu, i);
        (void)snprintf(name, sizeof name, "%s/level", folder);
        if (!read_line(root, name, level, sizeof level))
            return;
        (void)snprintf(name, sizeof name, "%s/size", folder);
        if (!read_line(root, name, size, sizeof size))
            continue;
        if (strcmp(level, "2") == 0)
            topology->l2_bytes = parse_size(size);
        else if (strcmp(level, "3") == 0)
            topology->l3_bytes = parse_size(size);
    }
}

static int at_least_one(long n)
{
    return n > 1 ? (int)n : 1;
}

void twi_topology_sysfs(const char *root, twi_topology_t *topology_out)
{
    twi_topology_t topology = {.source = "sysfs"};
    char list[LIST_BYTES];
    const char *cursor = list;
    long first, last;
    bool caches_read = false;
    if (!read_line(root, "cpu/online", list, sizeof list))
        list[0] = '\0';
    while (next_range(&cursor, &first, &last)) {
        for (long cpu = first; cpu <= last; cpu++) {
            topology.cpus++;
            topology.cores += leads_group(root, cpu, "thread_siblings_list", true);
            topology.packages += leads_group(root, cpu, "core_siblings_list", false);
            if (!caches_read)
                read_caches(root, cpu, &topology);
            caches_read = true;
        }
    }
    if (topology.cpus == 0)
        topology.cpus = topology.cores = at_least_one(sysconf(_SC_NPROCESSORS_ONLN));
    topology.cores = at_least_one(topology.cores);
    topology.packages = at_least_one(topology.packages);
    topology.numa_nodes = at_least_one(read_line(root, "node/online", list, sizeof list) ? count_list(list) : 1);
    *topology_out = topology;
}

#ifdef TWI_HAVE_HWLOC
static size_t hwloc_cache_bytes(hwloc_topology_t handle, hwloc_obj_type_t type)
{
    const hwloc_obj_t cache = hwloc_get_obj_by_type(handle, type, 0);
    return cache != NULL && cache->attr != NULL ? (size_t)cache->attr->cache.size : 0;
}

static bool topology_hwloc(twi_topology_t *topology_out)
{
    hwloc_topology_t handle;
    if (hwloc_topology_init(&handle) != 0)
        return false;
#if HWLOC_API_VERSION >= 0x00020100
    (void)hwloc_topology_set_flags(handle, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
#endif
    const bool loaded = hwloc_topology_load(handle) == 0;
    if (loaded) {
        *topology_out = (twi_topology_t){
            .source = "hwloc",
            .packages = at_least_one(hwloc_get_nbobjs_by_type(handle, HWLOC_OBJ_PACKAGE)),
            .numa_nodes = at_least_one(hwloc_get_nbobjs_by_type(handle, HWLOC_OBJ_NUMANODE)),
            .cores = at_least_one(hwloc_get_nbobjs_by_type(handle, HWLOC_OBJ_CORE)),
            .cpus = at_least_one(hwloc_get_nbobjs_by_type(handle, HWLOC_OBJ_PU)),
            .l2_bytes = hwloc_cache_bytes(handle, HWLOC_OBJ_L2CACHE),
            .l3_bytes = hwloc_cache_bytes(handle, HWLOC_OBJ_L3CACHE),
        };
    }
    hwloc_topology_destroy(handle);
    return loaded;
}
#endif

static twi_topology_t g_topology;
static pthread_once_t g_once = PTHREAD_ONCE_INIT;

static void read_once(void)
{
#ifdef TWI_HAVE_HWLOC
    if (topology_hwloc(&g_topology))
        return;
#endif
    twi_topology_sysfs("/sys/devices/system", &g_topology);
}

const twi_topology_t *twi_cpu_topology(void)
{
    (void)pthread_once(&g_once, read_once);
    return &g_topology;
}

int twi_cpu_allowed(void)
{
    for (int limit = CPU_SETSIZE; limit <= CPU_LIMIT; limit *= 4) {
        cpu_set_t *set = CPU_ALLOC(limit);
        if (set == NULL)
            break;
        const size_t bytes = CPU_ALLOC_SIZE(limit);
        CPU_ZERO_S(bytes, set);
        const bool known = sched_getaffinity(0, bytes, set) == 0; /* EINVAL: more CPUs than `limit` */
        const int count = known ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (known)
            return at_least_one(count);
    }
    return at_least_one(sysconf(_SC_NPROCESSORS_ONLN));
}
