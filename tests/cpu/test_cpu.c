/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cpu layer: levels against /proc/cpuinfo, the cap, the affinity mask, and the sysfs reader on
 * trees made for it in a temporary folder.
 */
#define _GNU_SOURCE
#include <ftw.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cpu/cpu_internal.h"
#include "harness/test.h"

static bool has_word(const char *text, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word)) {
        const bool starts = at == text || at[-1] == ' ';
        if (starts && (at[length] == '\0' || at[length] == ' ' || at[length] == '\n'))
            return true;
    }
    return false;
}

/* The "flags" line of the first processor; false where there is none. */
static bool read_flags(char *flags_out, size_t bytes)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (file == NULL)
        return false;
    bool found = false;
    while (!found && fgets(flags_out, (int)bytes, file) != NULL)
        found = strncmp(flags_out, "flags", 5) == 0;
    (void)fclose(file);
    return found;
}

static bool has_all(const char *text, const char *const *words)
{
    for (; *words != NULL; words++) {
        if (!has_word(text, *words))
            return false;
    }
    return true;
}

static const char *const level_flags[][5] = {
    [TWI_ISA_PORTABLE] = {NULL},
    [TWI_ISA_AVX2] = {"avx2", "fma", "f16c", NULL},
    [TWI_ISA_AVX512] = {"avx512f", "avx512bw", "avx512dq", "avx512vl", NULL},
    [TWI_ISA_AVX512BF16] = {"avx512_bf16", "avx512_vnni", NULL},
    [TWI_ISA_AMX] = {"amx_tile", "amx_bf16", "amx_int8", NULL},
};

TEST(level_agrees_with_the_kernel)
{
    static char flags[16384];
    if (!read_flags(flags, sizeof flags))
        SKIP("no flags in /proc/cpuinfo");
    int level = TWI_ISA_PORTABLE;
    while (level < TWI_ISA_AMX && has_all(flags, level_flags[level + 1]))
        level++;
    if (level == TWI_ISA_AMX && strcmp(twi_cpu_detected()->amx, "refused") == 0)
        level--;
    CHECK_EQ(twi_cpu_isa_machine(), level);
}

TEST(features_are_flags_of_the_kernel)
{
    static char flags[16384];
    if (!read_flags(flags, sizeof flags))
        SKIP("no flags in /proc/cpuinfo");
    char words[sizeof twi_cpu_detected()->features];
    memcpy(words, twi_cpu_detected()->features, sizeof words);
    char *state;
    for (char *word = strtok_r(words, " ", &state); word != NULL; word = strtok_r(NULL, " ", &state)) {
        if (!has_word(flags, word))
            printf("feature %s is not in /proc/cpuinfo\n", word);
        CHECK(has_word(flags, word));
    }
}

#if defined(__x86_64__)

/* A processor that has all, of an OS that allows all. */
static const twi_cpu_words_t everything = {
    .leaf_1 = {[2] = 1u << 12 | 1u << 29},
    .leaf_7 = {{1, 1u << 5 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, 1u << 11, 1u << 22 | 1u << 24 | 1u << 25},
               {1u << 5}},
    .xcr0 = 0x600e7,
    .amx_permitted = true,
};

static void check_decision(const twi_cpu_words_t *words, twi_isa_t isa, const char *amx, bool vnni)
{
    twi_cpu_detected_t found;
    twi_cpu_decide(words, &found);
    CHECK_EQ(found.isa, isa);
    CHECK_STR(found.amx, amx);
    CHECK_EQ(found.vnni, vnni);
    CHECK_EQ(has_word(found.features, "avx512_vnni"), vnni);
    CHECK_EQ(has_word(found.features, "amx_tile"), strcmp(amx, "granted") == 0);
    CHECK_EQ(has_word(found.features, "avx2"), isa > TWI_ISA_PORTABLE);
    CHECK_EQ(has_word(found.features, "avx512f"), isa >= TWI_ISA_AVX512);
}

TEST(states_that_the_os_saves)
{
    static const struct {
        uint64_t xcr0;
        bool permitted;
        twi_isa_t isa;
        const char *amx;
        bool vnni;
    } cases[] = {
        {0x600e7, true, TWI_ISA_AMX, "granted", true},
        {0x600e7, false, TWI_ISA_AVX512BF16, "refused", true},
        {0xe7, true, TWI_ISA_AVX512BF16, "refused", true},
        {0x200e7, true, TWI_ISA_AVX512BF16, "refused", true}, /* no tile data */
        {0x400e7, true, TWI_ISA_AVX512BF16, "refused", true},
        {0x60007, true, TWI_ISA_AVX2, "granted", false},
        {0x7, false, TWI_ISA_AVX2, "refused", false},
        {0x67, false, TWI_ISA_AVX2, "refused", false}, /* no upper zmm */
        {0xa7, false, TWI_ISA_AVX2, "refused", false},
        {0xc7, false, TWI_ISA_AVX2, "refused", false},
        {0x3, false, TWI_ISA_PORTABLE, "refused", false},
        {0xe3, false, TWI_ISA_PORTABLE, "refused", false},
        {0, false, TWI_ISA_PORTABLE, "refused", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        twi_cpu_words_t words = everything;
        words.xcr0 = cases[i].xcr0;
        words.amx_permitted = cases[i].permitted;
        check_decision(&words, cases[i].isa, cases[i].amx, cases[i].vnni);
    }
}

/* Every bit that is missing leaves the level below its own. */
TEST(features_that_are_missing)
{
    twi_cpu_words_t words = everything;
    const struct {
        uint32_t *word;
        int bit;
        twi_isa_t isa;
    } cases[] = {
        {&words.leaf_1[2], 12, TWI_ISA_PORTABLE},      {&words.leaf_1[2], 29, TWI_ISA_PORTABLE},
        {&words.leaf_7[0][1], 5, TWI_ISA_PORTABLE},    {&words.leaf_7[0][1], 16, TWI_ISA_AVX2},
        {&words.leaf_7[0][1], 17, TWI_ISA_AVX2},       {&words.leaf_7[0][1], 30, TWI_ISA_AVX2},
        {&words.leaf_7[0][1], 31, TWI_ISA_AVX2},       {&words.leaf_7[0][2], 11, TWI_ISA_AVX512},
        {&words.leaf_7[1][0], 5, TWI_ISA_AVX512},      {&words.leaf_7[0][3], 22, TWI_ISA_AVX512BF16},
        {&words.leaf_7[0][3], 24, TWI_ISA_AVX512BF16}, {&words.leaf_7[0][3], 25, TWI_ISA_AVX512BF16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        twi_cpu_detected_t found;
        *cases[i].word &= ~(1u << cases[i].bit);
        twi_cpu_decide(&words, &found);
        CHECK_EQ(found.isa, cases[i].isa);
        CHECK_STR(found.amx, cases[i].bit == 24 ? "absent" : "granted");
        words = everything;
    }
}

#endif

TEST(levels_have_names)
{
    CHECK_STR(twi_isa_name(TWI_ISA_PORTABLE), "portable");
    CHECK_STR(twi_isa_name(TWI_ISA_AVX2), "avx2");
    CHECK_STR(twi_isa_name(TWI_ISA_AVX512), "avx512");
    CHECK_STR(twi_isa_name(TWI_ISA_AVX512BF16), "avx512bf16");
    CHECK_STR(twi_isa_name(TWI_ISA_AMX), "amx");
    CHECK_STR(twi_isa_name((twi_isa_t)17), "unknown");
}

/* The level that a fresh process with this cap uses. */
static int capped_level(const char *cap)
{
    const pid_t pid = fork();
    if (pid == 0) {
        if (setenv("TILEWIRE_ISA", cap, 1) != 0)
            _exit(100);
        _exit((int)twi_cpu_isa());
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        return -1;
    return WEXITSTATUS(status);
}

TEST(cap_is_respected)
{
    const int machine = (int)twi_cpu_isa_machine();
    for (int cap = TWI_ISA_PORTABLE; cap <= TWI_ISA_AMX; cap++)
        CHECK_EQ(capped_level(twi_isa_name((twi_isa_t)cap)), cap < machine ? cap : machine);
}

TEST(allowed_follows_the_affinity_mask)
{
    cpu_set_t old;
    CHECK_EQ(sched_getaffinity(0, sizeof old, &old), 0);
    CHECK_EQ(twi_cpu_allowed(), CPU_COUNT(&old));
    int cpu = 0;
    while (!CPU_ISSET(cpu, &old))
        cpu++;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    CHECK_EQ(twi_cpu_allowed(), 1);
    CHECK_EQ(sched_setaffinity(0, sizeof old, &old), 0);
    CHECK_EQ(twi_cpu_allowed(), CPU_COUNT(&old));
}

TEST(topology_of_this_machine_is_plausible)
{
    const twi_topology_t *topology = twi_cpu_topology();
    CHECK(topology->packages >= 1);
    CHECK(topology->numa_nodes >= 1);
    CHECK(topology->cores >= topology->packages);
    CHECK(topology->cpus >= topology->cores);
    CHECK(topology->cpus >= twi_cpu_allowed());
    CHECK(twi_cpu_topology() == topology);
}

/* ---- Trees ------------------------------------------------------------------------------------ */

typedef struct tree {
    char root[64];
} tree_t;

static bool tree_open(tree_t *tree_out)
{
    (void)snprintf(tree_out->root, sizeof tree_out->root, "/tmp/tilewire-cpu-XXXXXX");
    return mkdtemp(tree_out->root) != NULL;
}

/* Writes a file below the root and makes the folders on its way. */
static void tree_put(const tree_t *tree, const char *name, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", tree->root, name);
    for (char *slash = strchr(path + strlen(tree->root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "we");
    CHECK(file != NULL);
    (void)fprintf(file, "%s\n", text);
    (void)fclose(file);
}

static void tree_put_cpu(const tree_t *tree, int cpu, const char *threads, const char *package)
{
    char name[128];
    (void)snprintf(name, sizeof name, "cpu/cpu%d/topology/thread_siblings_list", cpu);
    tree_put(tree, name, threads);
    (void)snprintf(name, sizeof name, "cpu/cpu%d/topology/core_siblings_list", cpu);
    tree_put(tree, name, package);
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info, (void)type, (void)walk;
    return remove(path);
}

static twi_topology_t tree_close_and_read(const tree_t *tree)
{
    twi_topology_t topology;
    twi_topology_sysfs(tree->root, &topology);
    CHECK_EQ(nftw(tree->root, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
    return topology;
}

TEST(sysfs_two_sockets_with_hyperthreads)
{
    tree_t tree;
    CHECK(tree_open(&tree));
    tree_put(&tree, "cpu/online", "0-7");
    tree_put(&tree, "node/online", "0-1");
    static const char *const threads[] = {"0,4", "1,5", "2,6", "3,7"};
    for (int cpu = 0; cpu < 8; cpu++)
        tree_put_cpu(&tree, cpu, threads[cpu % 4], cpu % 4 < 2 ? "0-1,4-5" : "2-3,6-7");
    tree_put(&tree, "cpu/cpu0/cache/index0/level", "1");
    tree_put(&tree, "cpu/cpu0/cache/index0/size", "48K");
    tree_put(&tree, "cpu/cpu0/cache/index1/level", "2");
    tree_put(&tree, "cpu/cpu0/cache/index1/size", "2048K");
    tree_put(&tree, "cpu/cpu0/cache/index2/level", "3");
    tree_put(&tree, "cpu/cpu0/cache/index2/size", "48M");
    const twi_topology_t topology = tree_close_and_read(&tree);
    CHECK_STR(topology.source, "sysfs");
    CHECK_EQ(topology.cpus, 8);
    CHECK_EQ(topology.cores, 4);
    CHECK_EQ(topology.packages, 2);
    CHECK_EQ(topology.numa_nodes, 2);
    CHECK_EQ(topology.l2_bytes, (size_t)2 << 20);
    CHECK_EQ(topology.l3_bytes, (size_t)48 << 20);
}

TEST(sysfs_with_offline_cpus_and_odd_nodes)
{
    tree_t tree;
    CHECK(tree_open(&tree));
    tree_put(&tree, "cpu/online", "1,3-4");
    tree_put(&tree, "node/online", "0,2,8-9");
    tree_put_cpu(&tree, 1, "1", "1,3-4");
    tree_put_cpu(&tree, 3, "3-4", "1,3-4");
    tree_put_cpu(&tree, 4, "3-4", "1,3-4");
    const twi_topology_t topology = tree_close_and_read(&tree);
    CHECK_EQ(topology.cpus, 3);
    CHECK_EQ(topology.cores, 2);
    CHECK_EQ(topology.packages, 1);
    CHECK_EQ(topology.numa_nodes, 4);
    CHECK_EQ(topology.l2_bytes, 0);
    CHECK_EQ(topology.l3_bytes, 0);
}

TEST(sysfs_without_topology_files)
{
    tree_t tree;
    CHECK(tree_open(&tree));
    tree_put(&tree, "cpu/online", "0-2");
    const twi_topology_t topology = tree_close_and_read(&tree);
    CHECK_EQ(topology.cpus, 3);
    CHECK_EQ(topology.cores, 3);
    CHECK_EQ(topology.packages, 1);
    CHECK_EQ(topology.numa_nodes, 1);
}

TEST(sysfs_malformed_or_missing)
{
    twi_topology_t topology;
    twi_topology_sysfs("/nonexistent", &topology);
    CHECK(topology.cpus >= 1);
    CHECK(topology.cores >= 1);
    CHECK_EQ(topology.packages, 1);
    static const char *const lists[] = {"", "x", "-3", "5-2", "0-99999999", "99999999999999999999"};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        tree_t tree;
        CHECK(tree_open(&tree));
        tree_put(&tree, "cpu/online", lists[i]);
        tree_put(&tree, "node/online", lists[i]);
        topology = tree_close_and_read(&tree);
        CHECK(topology.cpus >= 1);
        CHECK_EQ(topology.numa_nodes, 1);
    }
}

TEST(rows_are_complete_and_stable)
{
    tw_info_row_t row;
    unsigned n = 0;
    bool isa_seen = false;
    for (; twi_cpu_row(n, &row); n++) {
        CHECK(strcmp(row.section, "cpu") == 0 || strcmp(row.section, "topology") == 0);
        CHECK(row.name[0] != '\0' && row.value != NULL && row.help[0] != '\0');
        if (strcmp(row.name, "isa") == 0) {
            CHECK_STR(row.value, twi_isa_name(twi_cpu_isa()));
            isa_seen = true;
        }
    }
    CHECK(n >= 10);
    CHECK(isa_seen);
    CHECK(!twi_cpu_row(n, &row));
    CHECK(!twi_cpu_row(~0u, &row));
}
