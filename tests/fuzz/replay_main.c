/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target over its corpus as an ordinary test: each file, and the empty input, is a case.
 * Linked to exactly one target. `replay_x FILE...` runs those files instead and in this process, for
 * a debugger.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECONDS 60 /* for one input, also under a sanitizer */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        return 1;
    }
    (void)fseek(file, 0, SEEK_END);
    const long size = ftell(file);
    rewind(file);
    uint8_t *data = (uint8_t *)malloc(size > 0 ? (size_t)size : 1); /* exact, so that ASan sees an overrun */
    const bool read_all = data != NULL && size >= 0 && fread(data, 1, (size_t)size, file) == (size_t)size;
    (void)fclose(file);
    if (read_all)
        (void)LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    return read_all ? 0 : 1;
}

/* True if the target survives the input. */
static bool run_case(int number, const char *name, const char *path)
{
    (void)fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        (void)alarm(SECONDS);
        _exit(path != NULL ? run_file(path) : (LLVMFuzzerTestOneInput((const uint8_t *)"", 0), 0));
    }
    int status = 1;
    const bool passed = pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
    (void)printf("%s %d - %s\n", passed ? "ok" : "not ok", number, name);
    return passed;
}

static int visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static int replay_corpus(const char *folder)
{
    struct dirent **entries = NULL;
    const int n = scandir(folder, &entries, visible, alphasort);
    if (n <= 0) {
        (void)printf("not ok 1 - %s has no files\n0 passed, 1 failed, 0 skipped\n", folder);
        return 1;
    }
    int passed = run_case(1, "(empty)", NULL);
    for (int i = 0; i < n; i++) {
        char path[4096];
        (void)snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        passed += run_case(i + 2, entries[i]->d_name, path);
        free(entries[i]);
    }
    free(entries);
    (void)printf("%d passed, %d failed, 0 skipped\n", passed, n + 1 - passed);
    return passed == n + 1 ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc == 1)
        return replay_corpus(REPLAY_CORPUS);
    int failed = 0;
    for (int i = 1; i < argc; i++)
        failed |= run_file(argv[i]);
    return failed;
}
