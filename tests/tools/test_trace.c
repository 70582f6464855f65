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

/* ---- What a trace must tell -------------------------------------------------------------------- */

enum { RANKS = 3, KINDS_MOST = 8, OF_KERNEL = -1 };

/* What every rank does in an operator, whatever the others do at that time. */
typedef struct expected {
    const char *op, *shape, *title;
    const char *option, *value;
    const char *kinds[KINDS_MOST];
    int64_t sent;   /* elements that each rank sends to the others; OF_KERNEL: as many as its tiles make them, */
    int64_t all;    /* and all ranks together so many */
    int64_t share;  /* rows that a rank gets at a time; 0: that is not looked at */
    int64_t period; /* rows after which all of them get some again */
} expected_t;

static int count_events(const char *text, const char *kind, int rank)
{
    char word[96];
    (void)snprintf(word, sizeof word, "{\"name\": \"%s\", \"ph\": \"X\", \"pid\": %d, ", kind, rank);
    return count(text, word);
}

/* Elements of the events that tell somebody; what is for all of them says nobody. */
static int64_t elements_sent(const expected_t *expected, const char *text, int rank)
{
    char word[64];
    int64_t sum = 0;
    (void)snprintf(word, sizeof word, "{\"name\": \"send\", \"ph\": \"X\", \"pid\": %d, ", rank);
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word)) {
        long long row, rows, col, cols;
        int peer = -2;
        const char *args = strstr(at, "\"args\": ");
        CHECK(args != NULL);
        CHECK_EQ(sscanf(args, "\"args\": {\"row\": %lld, \"rows\": %lld, \"col\": %lld, \"cols\": %lld, \"peer\": %d}",
                        &row, &rows, &col, &cols, &peer),
                 5);
        CHECK(peer >= -1 && peer < RANKS && peer != rank && rows > 0);
        if (peer >= 0 && expected->share > 0)
            CHECK_EQ(peer, row % expected->period / expected->share);
        sum += rows * cols;
    }
    return sum;
}

static void check_well_formed(const char *text)
{
    char line[PATH_MAX + 64];
    CHECK(strncmp(text, "{\"displayTimeUnit\": ", 20) == 0);
    CHECK_EQ(count(text, "\"ph\": \"X\""), count(text, "\"peer\": "));
    CHECK(count(text, "\"ts\": 0.000,") >= 1 && count(text, "\"ts\": -") == 0 && count(text, "\"dur\": -") == 0);
    if (system("python3 -c pass >/dev/null 2>&1") == 0) {
        (void)snprintf(line, sizeof line, "python3 -m json.tool '%s/trace.json' >/dev/null", folder);
        CHECK_EQ(system(line), 0);
    }
}

static void check_json(const expected_t *expected)
{
    char *text = read_file("trace.json");
    int64_t all = 0;
    check_well_formed(text);
    for (int rank = 0; rank < RANKS; rank++) {
        for (int i = 0; i < KINDS_MOST && expected->kinds[i] != NULL; i++) {
            if (count_events(text, expected->kinds[i], rank) == 0)
                printf("%s: rank %d has no '%s'\n", expected->op, rank, expected->kinds[i]);
            CHECK(count_events(text, expected->kinds[i], rank) > 0);
        }
        const int64_t sent = elements_sent(expected, text, rank);
        all += sent;
        if (expected->sent != OF_KERNEL)
            CHECK_EQ(sent, expected->sent);
    }
    if (expected->sent == OF_KERNEL)
        CHECK_EQ(all, expected->all);
    free(text);
}

/* The text between <title> and </title> names the kinds of work in a rectangle and the rank. How many there are
 * in one depends on how long the call took: short ones are drawn together. */
static bool has_kind(const char *text, const char *kind, int rank)
{
    char word[32];
    (void)snprintf(word, sizeof word, "rank %d, from ", rank);
    for (const char *at = strstr(text, "<title>"); at != NULL; at = strstr(at + 1, "<title>")) {
        const char *end = strstr(at, "</title>"), *named = strstr(at, kind), *of = strstr(at, word);
        if (end != NULL && named != NULL && named < end && of != NULL && of < end)
            return true;
    }
    return false;
}

static void check_svg(const expected_t *expected)
{
    char *text = read_file("trace.svg");
    CHECK(strncmp(text, "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 40) == 0);
    CHECK(strlen(text) > 7 && strcmp(text + strlen(text) - 7, "</svg>\n") == 0);
    CHECK_CONTAINS(text, expected->title);
    CHECK_CONTAINS(text, "microseconds");
    CHECK_EQ(count(text, "<text"), count(text, "</text>"));
    CHECK_EQ(count(text, "<title>"), count(text, "</title></rect>"));
    CHECK_EQ(count(text, "<rect"), count(text, "/>") + count(text, "</rect>") - count(text, "<line"));
    CHECK(count(text, "nan") == 0 && count(text, "inf") == 0 && count(text, "width=\"-") == 0);
    for (int rank = 0; rank < RANKS; rank++) {
        for (int i = 0; i < KINDS_MOST && expected->kinds[i] != NULL; i++)
            CHECK(has_kind(text, expected->kinds[i], rank));
    }
    free(text);
}

static void check_trace(const expected_t *expected)
{
    tool_t tool;
    char paths[256];
    make_folder();
    CHECK_EQ(RUN(&tool, "trace", expected->op, "--shape", expected->shape, "--ranks", "3", "-o", folder,
                 expected->option, expected->value),
             0);
    (void)snprintf(paths, sizeof paths, "%s/trace.json\n%s/trace.svg\n", folder, folder);
    CHECK_STR(out_of(&tool), paths);
    check_json(expected);
    check_svg(expected);
    remove_folder();
}

TEST(reduce_scatter)
{
    expected_t expected = {
        .op = "mm_reduce_scatter",
        .shape = "96,64,128",
        .title = "mm_reduce_scatter, m 96, k 64, n 128, 3 ranks of 1 worker<",
        .kinds = {"product", "pack", "send"},
        .sent = 64 * 128,
        .share = 32,
        .period = 96,
    };
    check_trace(&expected);
    expected.option = "--rounds";
    expected.value = "none";
    expected.kinds[3] = "reduce";
    expected.sent = 96 * 128;
    check_trace(&expected);
}

TEST(all_reduce)
{
    check_trace(&(expected_t){
        .op = "mm_all_reduce",
        .shape = "96,64,128",
        .title = "mm_all_reduce, m 96, k 64, n 128, 3 ranks",
        .option = "--rounds",
        .value = "2",
        .kinds = {"product", "pack", "send", "copy"},
        .sent = OF_KERNEL,
        .all = 2 * 96 * 128,
    });
}

TEST(all_gather_of_threads)
{
    expected_t expected = {
        .op = "all_gather_mm",
        .shape = "65,33,129",
        .title = "all_gather_mm, m 65, k 33, n 129, 3 ranks",
        .option = "--transport",
        .value = "threads",
        .kinds = {"product", "pack", "send"},
        .sent = 65 * 33,
    };
    check_trace(&expected);
    expected.option = "--rounds";
    expected.value = "2";
    expected.kinds[3] = "copy";
    check_trace(&expected);
}

TEST(experts)
{
    check_trace(&(expected_t){
        .op = "gmm_alltoallv",
        .shape = "96,64,128",
        .title = "gmm_alltoallv, m 96, k 64, n 128, 3 ranks",
        .option = "--shared",
        .value = "32,32,32",
        .kinds = {"product", "product, shared", "pack", "send", "copy"},
        .sent = 64 * 128,
        .share = 16,
        .period = 48,
    });
    check_trace(&(expected_t){
        .op = "alltoallv_gmm",
        .shape = "96,64,128",
        .title = "alltoallv_gmm, m 96, k 64, n 128, 3 ranks",
        .option = "--rounds",
        .value = "2",
        .kinds = {"product", "pack", "send", "copy"},
        .sent = 96 * 64,
    });
}

/* Rank 0 has all rows to multiply, and rank 1 nothing to do but wait for them. */
TEST(waits)
{
    tool_t tool;
    make_folder();
    CHECK_EQ(RUN(&tool, "trace", "gmm_alltoallv", "--shape", "1024,1024,1024", "--experts", "1", "--hot", "1",
                 "--warmup", "0", "-o", folder),
             0);
    char *json = read_file("trace.json"), *svg = read_file("trace.svg");
    CHECK(count_events(json, "wait", 1) > 0 && count_events(json, "product", 1) == 0);
    CHECK(has_kind(svg, "wait", 1));
    free(json);
    free(svg);
    remove_folder();
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
