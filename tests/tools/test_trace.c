/* SPDX-License-Identifier: Apache-2.0 */
/* `tilewire trace` as a user runs it: both files are there, well formed, and tell about every rank. */
#define _GNU_SOURCE
#include "harness/test.h"
#include "tools/tool.h"

static char folder[64];

static void make_folder(void)
{
    (void)snprintf(folder, sizeof folder, "/tmp/tilewire-test-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
}

static void remove_folder(void)
{
    char line[128];
    (void)snprintf(line, sizeof line, "rm -r '%s'", folder);
    CHECK_EQ(system(line), 0);
}

static char *read_file(const char *name)
{
    char path[PATH_MAX], *text = calloc(1, TEXT_BYTES);
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL && text != NULL);
    CHECK(fread(text, 1, TEXT_BYTES - 1, file) > 0 && feof(file));
    (void)fclose(file);
    return text;
}

static int count(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + strlen(word), word))
        n++;
    return n;
}

static void check_json(int ranks)
{
    char line[PATH_MAX + 64], word[64];
    char *text = read_file("trace.json");
    CHECK(strncmp(text, "{\"displayTimeUnit\": ", 20) == 0);
    for (int rank = 0; rank < ranks; rank++) {
        (void)snprintf(word, sizeof word, "\"ph\": \"X\", \"pid\": %d, \"tid\": 0, \"ts\": ", rank);
        CHECK(count(text, word) > 0);
    }
    CHECK(count(text, "\"name\": \"product") >= ranks);
    CHECK_EQ(count(text, "\"ph\": \"X\""), count(text, "\"peer\": "));
    CHECK(count(text, "\"ts\": 0.000,") >= 1 && count(text, "\"ts\": -") == 0 && count(text, "\"dur\": -") == 0);
    if (system("python3 -c pass >/dev/null 2>&1") == 0) {
        (void)snprintf(line, sizeof line, "python3 -m json.tool '%s/trace.json' >/dev/null", folder);
        CHECK_EQ(system(line), 0);
    }
    free(text);
}

/* The text between <title> and </title> names the kinds of work in a rectangle and the rank. How many there are
 * in one depends on how long the call took: short ones are drawn together. */
static bool has_product(const char *text, int rank)
{
    char word[32];
    (void)snprintf(word, sizeof word, "rank %d, from ", rank);
    for (const char *at = strstr(text, "<title>"); at != NULL; at = strstr(at + 1, "<title>")) {
        const char *end = strstr(at, "</title>"), *product = strstr(at, "product"), *of = strstr(at, word);
        if (end != NULL && product != NULL && product < end && of != NULL && of < end)
            return true;
    }
    return false;
}

static void check_svg(const char *title, int ranks)
{
    char *text = read_file("trace.svg");
    CHECK(strncmp(text, "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 40) == 0);
    CHECK(strlen(text) > 7 && strcmp(text + strlen(text) - 7, "</svg>\n") == 0);
    CHECK_CONTAINS(text, title);
    CHECK_CONTAINS(text, "microseconds");
    CHECK_EQ(count(text, "<text"), count(text, "</text>"));
    CHECK_EQ(count(text, "<title>"), count(text, "</title></rect>"));
    CHECK_EQ(count(text, "<rect"), count(text, "/>") + count(text, "</rect>") - count(text, "<line"));
    CHECK(count(text, "nan") == 0 && count(text, "inf") == 0 && count(text, "width=\"-") == 0);
    for (int rank = 0; rank < ranks; rank++)
        CHECK(has_product(text, rank));
    free(text);
}

static void check_trace(const char *op, const char *shape, const char *title, const char *option, const char *value)
{
    tool_t tool;
    char expected[256];
    make_folder();
    CHECK_EQ(RUN(&tool, "trace", op, "--shape", shape, "--ranks", "3", "-o", folder, option, value), 0);
    (void)snprintf(expected, sizeof expected, "%s/trace.json\n%s/trace.svg\n", folder, folder);
    CHECK_STR(out_of(&tool), expected);
    check_json(3);
    check_svg(title, 3);
    remove_folder();
}

TEST(reduce_scatter)
{
    check_trace("mm_reduce_scatter", "96,64,128", "mm_reduce_scatter, m 96, k 64, n 128, 3 ranks of 1 worker<", NULL,
                NULL);
}

TEST(all_gather_of_threads)
{
    check_trace("all_gather_mm", "65,33,129", "all_gather_mm, m 65, k 33, n 129, 3 ranks", "--transport", "threads");
}

TEST(experts)
{
    check_trace("gmm_alltoallv", "96,64,128", "gmm_alltoallv, m 96, k 64, n 128, 3 ranks", "--shared", "32,32,32");
    check_trace("alltoallv_gmm", "96,64,128", "alltoallv_gmm, m 96, k 64, n 128, 3 ranks", "--quant", "none");
}

TEST(a_folder_that_cannot_be_made_is_named)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "trace", "mm_all_reduce", "--shape", "16,16,16", "-o", "/nonexistent/folder"), 1);
    CHECK_CONTAINS(err_of(&tool), "tilewire trace: /nonexistent/folder: No such file or directory");
    CHECK_STR(out_of(&tool), "");
}

TEST(usage)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "trace", "--help"), 0);
    CHECK_CONTAINS(out_of(&tool), "usage: tilewire trace OPERATOR [options]");
    CHECK_CONTAINS(out_of(&tool), "--output DIR");
    CHECK_EQ(RUN(&tool, "trace"), 2);
    CHECK_CONTAINS(err_of(&tool), "the operator is missing");
    CHECK_EQ(RUN(&tool, "trace", "mm_all_redce"), 2);
    CHECK_CONTAINS(err_of(&tool), "did you mean 'mm_all_reduce'?");
    CHECK_EQ(RUN(&tool, "trace", "mm_all_reduce", "--shape", "1,1,1;2,2,2"), 2);
    CHECK_CONTAINS(err_of(&tool), "one shape is traced, not 2");
    CHECK_EQ(RUN(&tool, "trace", "mm_all_reduce", "-o", ""), 2);
    CHECK_CONTAINS(err_of(&tool), "--output is empty");
}
