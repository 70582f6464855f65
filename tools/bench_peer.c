/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and loads the library of a peer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

#define LIBRARY "libtilewire-peer-mpi.so"

static bool folder_of(const char *file, char *folder_out, size_t bytes)
{
    const char *slash = strrchr(file, '/');
    return slash != NULL && snprintf(folder_out, bytes, "%.*s", (int)(slash - file), file) < (int)bytes;
}

bool bench_folder_of_command(char *folder_out, size_t bytes)
{
    char path[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0)
        return false;
    path[n] = '\0';
    return folder_of(path, folder_out, bytes);
}

bool bench_folder_of_library(char *folder_out, size_t bytes)
{
    Dl_info info;
    return dladdr((void *)(uintptr_t)tw_version, &info) != 0 && folder_of(info.dli_fname, folder_out, bytes);
}

static bool find_given(const char *given, char *path_out, size_t bytes)
{
    (void)snprintf(path_out, bytes, "%s", given);
    if (access(path_out, R_OK) == 0)
        return true;
    (void)fprintf(stderr, "tilewire bench: --peers: PEER_MPI_LIB is %s: %m\n", given);
    return false;
}

bool bench_peer_find(char *path_out, size_t bytes)
{
    const char *given = getenv("PEER_MPI_LIB");
    if (given != NULL && given[0] != '\0')
        return find_given(given, path_out, bytes);
    bool (*const folders[])(char *, size_t) = {bench_folder_of_command, bench_folder_of_library};
    static const char *const below[] = {"", "/../lib/tilewire", "/tilewire"};
    for (int i = 0; i < 6; i++) {
        char folder[PATH_MAX];
        if (folders[i / 3](folder, sizeof folder) &&
            snprintf(path_out, bytes, "%s%s/" LIBRARY, folder, below[i % 3]) < (int)bytes &&
            access(path_out, R_OK) == 0)
            return true;
    }
    (void)fprintf(stderr,
                  "tilewire bench: --peers: " LIBRARY " is neither beside this program nor beside libtilewire.so; "
                  "it is built where Open MPI (libopenmpi-dev) is found\n");
    return false;
}

const bench_peer_t *bench_peer_load(void)
{
    char path[PATH_MAX];
    if (!bench_peer_find(path, sizeof path))
        return NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* MPI's own plugins look for its symbols */
    if (library == NULL) {
        (void)fprintf(stderr, "tilewire bench: --peers: %s\n", dlerror());
        return NULL;
    }
    bench_peer_open_fn open_peer;
    void *symbol = dlsym(library, BENCH_PEER_SYMBOL);
    memcpy(&open_peer, &symbol, sizeof open_peer);
    const bench_peer_t *peer = symbol != NULL ? open_peer() : NULL;
    if (peer == NULL || peer->version != BENCH_PEER_VERSION) {
        (void)fprintf(stderr, "tilewire bench: --peers: %s is of another version\n", path);
        return NULL;
    }
    return peer;
}
