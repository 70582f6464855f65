/* SPDX-License-Identifier: Apache-2.0 */
/* The base layer: statuses, settings, log, argument structs, conversions, hashes. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/args.h"
#include "base/config.h"
#include "base/dtype.h"
#include "base/log.h"
#include "base/random.h"
#include "base/sha256.h"
#include "base/status.h"
#include "harness/test.h"

/* ---- Status ---------------------------------------------------------------------------------- */

TEST(status_texts)
{
    CHECK_STR(tw_status_string(TW_OK), "ok");
    CHECK_STR(tw_status_string(TW_ERR_ADDRESS_IN_USE), "address in use");
    CHECK_STR(tw_status_string((tw_status_t)12345), "unknown status");
#define TW_STATUS(name, value, text) CHECK_STR(tw_status_string((tw_status_t)(value)), text);
#include "base/status.def"
#undef TW_STATUS
}

static void *other_thread(void *arg)
{
    CHECK_STR(tw_last_error(), "");
    (void)twi_fail(TW_ERR_STATE, "of the other thread");
    return arg;
}

TEST(status_sentences)
{
    CHECK_STR(tw_last_error(), "");
    CHECK_STATUS(twi_fail(TW_ERR_ARGUMENT, "count is %d", 7), TW_ERR_ARGUMENT);
    CHECK_STR(tw_last_error(), "count is 7");
    CHECK_STATUS(twi_fail_prefix(TW_ERR_STATE, "rank %d", 3), TW_ERR_STATE);
    CHECK_STR(tw_last_error(), "rank 3: count is 7");
    errno = ENOENT;
    CHECK_STATUS(twi_fail(TW_ERR_SYSTEM, "open: %m"), TW_ERR_SYSTEM);
    CHECK_STR(tw_last_error(), "open: No such file or directory");
    CHECK_EQ(errno, ENOENT);
    char longer[2 * TWI_ERROR_MAX];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    (void)twi_fail(TW_ERR_STATE, "%s", longer);
    (void)twi_fail_prefix(TW_ERR_STATE, "%s", longer);
    CHECK_EQ(strlen(tw_last_error()), TWI_ERROR_MAX - 1);
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, other_thread, NULL), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(tw_last_error()[0], 'x');
}

/* ---- Argument structs -------------------------------------------------------------------------- */

typedef struct args_old {
    size_t struct_size;
    int a;
    int b;
} args_old_t;

typedef struct args_new {
    size_t struct_size;
    int a;
    int b;
    long c;
} args_new_t;

TEST(args_grow)
{
    const args_old_t old = {.struct_size = sizeof old, .a = 1, .b = 2};
    args_new_t copy = {.c = 99};
    CHECK_OK(twi_args_copy(&copy, sizeof copy, &old, "args"));
    CHECK_EQ(copy.struct_size, sizeof copy);
    CHECK_EQ(copy.a, 1);
    CHECK_EQ(copy.b, 2);
    CHECK_EQ(copy.c, 0);

    args_new_t newer = {.struct_size = sizeof newer, .a = 3, .b = 4};
    args_old_t shorter = {0};
    CHECK_OK(twi_args_copy(&shorter, sizeof shorter, &newer, "args"));
    CHECK_EQ(shorter.a, 3);
    newer.c = 1l << 40;
    shorter.a = 55;
    CHECK_STATUS(twi_args_copy(&shorter, sizeof shorter, &newer, "op_args"), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "op_args.struct_size");
    CHECK_EQ(shorter.a, 55);
}

TEST(args_refused)
{
    args_old_t copy;
    CHECK_STATUS(twi_args_copy(&copy, sizeof copy, NULL, "args"), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "args is NULL");
    args_old_t bad = {.struct_size = 0};
    CHECK_STATUS(twi_args_copy(&copy, sizeof copy, &bad, "args"), TW_ERR_ARGUMENT);
    bad.struct_size = sizeof(size_t) - 1;
    CHECK_STATUS(twi_args_copy(&copy, sizeof copy, &bad, "args"), TW_ERR_ARGUMENT);
    bad.struct_size = SIZE_MAX;
    CHECK_STATUS(twi_args_copy(&copy, sizeof copy, &bad, "args"), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "18446744073709551615");
    bad.struct_size = sizeof(size_t);
    bad.a = 7;
    CHECK_OK(twi_args_copy(&copy, sizeof copy, &bad, "args"));
    CHECK_EQ(copy.a, 0);
}

/* ---- Settings ---------------------------------------------------------------------------------- */

TEST(config_defaults)
{
    twi_config_t config;
    twi_config_defaults(&config);
    CHECK_STR(config.log, "warn");
    CHECK_EQ(config.isa, 4);
    CHECK_EQ(config.threads, 0);
    CHECK_EQ(config.transport, TW_TRANSPORT_AUTO);
    CHECK_EQ(config.profile, TW_PROFILE_NONE);
    CHECK_EQ(config.listen_fd, -1);
    CHECK_STR(config.token, "");
    CHECK_EQ(config.join_timeout, 300000000000);
    CHECK_EQ(config.enter_timeout, 1800000000000);
    CHECK_EQ(config.window_bytes, 64 << 20);
    CHECK_EQ(config.eager_bytes, 8 << 10);
    CHECK(config.cma);
}

#define SET_OK(name, value) CHECK_OK(twi_config_set(&config, name, value))
#define SET_BAD(name, value) CHECK_STATUS(twi_config_set(&config, name, value), TW_ERR_ARGUMENT)

TEST(config_words)
{
    twi_config_t config;
    twi_config_defaults(&config);
    static const char *const isas[] = {"portable", "avx2", "avx512", "avx512bf16", "amx"};
    for (int i = 0; i < 5; i++) {
        SET_OK("ISA", isas[i]);
        CHECK_EQ(config.isa, i);
    }
    SET_OK("TRANSPORT", "threads");
    CHECK_EQ(config.transport, TW_TRANSPORT_THREADS);
    SET_OK("TRANSPORT", "shm");
    CHECK_EQ(config.transport, TW_TRANSPORT_SHM);
    SET_OK("PROFILE", "a2");
    CHECK_EQ(config.profile, TW_PROFILE_A2);
    SET_OK("PROFILE", "a3");
    CHECK_EQ(config.profile, TW_PROFILE_A3);
    SET_OK("CMA", "off");
    CHECK(!config.cma);
    SET_OK("CMA", "true");
    CHECK(config.cma);
    SET_BAD("CMA", "2");
    SET_BAD("TRANSPORT", "SHM");
    SET_BAD("ISA", "");
    SET_BAD("ISA", "sse2");
    CHECK_CONTAINS(tw_last_error(), "ISA");
    CHECK_CONTAINS(tw_last_error(), "\"sse2\"");
    CHECK_CONTAINS(tw_last_error(), "expected portable|avx2|avx512|avx512bf16|amx");
    CHECK_EQ(config.isa, 4);
}

TEST(config_numbers)
{
    twi_config_t config;
    twi_config_defaults(&config);
    SET_OK("THREADS", "12");
    CHECK_EQ(config.threads, 12);
    static const char *const bad[] = {"",   "-",   "+1", " 1", "1 ", "0x1", "1.0", "one", "9223372036854775808",
                                      "-1", "4097"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        SET_BAD("THREADS", bad[i]);
    SET_OK("PORT", "65535");
    SET_BAD("PORT", "65536");
    SET_OK("SPIN", "-1");
    SET_BAD("SPIN", "-2");
    CHECK_EQ(config.threads, 12);
}

TEST(config_bytes)
{
    twi_config_t config;
    twi_config_defaults(&config);
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},         {"4096", 4096},     {"1K", 1024},       {"64KiB", 65536},
                {"3M", 3u << 20}, {"1MiB", 1u << 20}, {"2G", 2ull << 30}, {"2GiB", 2ull << 30}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        SET_OK("WINDOW_BYTES", good[i].text);
        CHECK_EQ(config.window_bytes, good[i].bytes);
    }
    static const char *const bad[] = {"",
                                      "K",
                                      "-1K",
                                      "1 K",
                                      "1KB",
                                      "1T",
                                      "1.5G",
                                      "1k",
                                      "18446744073709551616",
                                      "18446744073709551615",
                                      "17179869184G",
                                      "99999999999999999999999K"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        SET_BAD("WINDOW_BYTES", bad[i]);
}

TEST(config_times)
{
    twi_config_t config;
    twi_config_defaults(&config);
    static const struct {
        const char *text;
        uint64_t ns;
    } good[] = {{"1ns", 1},           {"7us", 7000},     {"100ms", 100000000},
                {"2s", 2000000000},   {"2", 2000000000}, {"30min", 1800000000000},
                {"1h", 3600000000000}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        SET_OK("TIMEOUT", good[i].text);
        CHECK_EQ(config.timeout, good[i].ns);
    }
    static const char *const bad[] = {"",    "0",  "0ms", "s",        "-1s",         "1.5s",
                                      "1 s", "1d", "1S",  "5124096h", "18446744074s"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        SET_BAD("TIMEOUT", bad[i]);
}

TEST(config_ranges)
{
    twi_config_t config;
    twi_config_defaults(&config);
    CHECK_STATUS(twi_config_set(&config, "PORT", "70000"), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "expected a whole number from 0 to 65535");
    CHECK_OK(twi_config_set(&config, "PORT", "65535"));
    CHECK_STATUS(twi_config_set(&config, "SPIN", "-2"), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "from -1 to 1000000");
}

TEST(config_unknown_names)
{
    twi_config_t config;
    twi_config_defaults(&config);
    CHECK_STATUS(twi_config_set(&config, "BANANA", "1"), TW_ERR_NOT_FOUND);
    CHECK(strstr(tw_last_error(), "closest") == NULL);
    CHECK_STATUS(twi_config_set(&config, "THREDS", "1"), TW_ERR_NOT_FOUND);
    CHECK_CONTAINS(tw_last_error(), "the closest is THREADS");
    CHECK_STATUS(twi_config_set(&config, "JOINTIMEOUT", "1"), TW_ERR_NOT_FOUND);
    CHECK_CONTAINS(tw_last_error(), "the closest is JOIN_TIMEOUT");
    CHECK_STATUS(twi_config_set(&config, "WEIGHTCACHE", "1G"), TW_ERR_NOT_FOUND);
    CHECK_CONTAINS(tw_last_error(), "the closest is WEIGHT_CACHE");
    CHECK_STATUS(twi_config_set(&config, "WEIGHT_CACHE", "1G"), TW_ERR_NOT_FOUND);
    CHECK_CONTAINS(tw_last_error(), "WEIGHT_CACHE belongs to the Python package");
    CHECK_STATUS(twi_config_set(&config, "", "1"), TW_ERR_NOT_FOUND);
    char longer[1000];
    memset(longer, 'A', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    CHECK_STATUS(twi_config_set(&config, longer, "1"), TW_ERR_NOT_FOUND);
}

static tw_info_row_t find_row(const char *name)
{
    tw_info_row_t row;
    for (unsigned i = 0; twi_config_row(i, &row); i++) {
        CHECK_STR(row.section, "config");
        CHECK(row.help[0] != '\0');
        if (strcmp(row.name, name) == 0)
            return row;
    }
    return (tw_info_row_t){.value = "no such row", .help = "no such row"};
}

static const char *shown(const char *name)
{
    return find_row(name).value;
}

/* ---- Start-up ---------------------------------------------------------------------------------- */

static char logged[65536];

static void collect(void *user, tw_log_level_t level, const char *line)
{
    (void)level;
    CHECK(user == logged);
    CHECK(strlen(logged) + strlen(line) + 2 < sizeof logged);
    strcat(strcat(logged, line), "\n");
    TWI_LOG(ERROR, "test", "from within the sink"); /* must neither recurse nor hang */
}

TEST(init_environment)
{
    setenv("TILEWIRE_THREADS", "3", 1);
    setenv("TILEWIRE_TIMEOUT", "90s", 1);
    setenv("TILEWIRE_TOKEN", "s3cret", 1);
    setenv("TILEWIRE_ISA", "", 1);
    setenv("TILEWIRE_WINDOW_BYTES", "many", 1);
    setenv("TILEWIRE_TRANSPRT", "shm", 1);
    setenv("TILEWIRE_SEEDS", "/nowhere", 1);
    setenv("TILEWIRE_LOG", "trace", 1);
    static const char *const settings[] = {"THREADS=5", NULL};
    tw_init_args_t args = TW_INIT_ARGS_INIT;
    args.log = collect;
    args.log_user = logged;
    args.settings = settings;
    CHECK_OK(tw_init(&args));
    CHECK_EQ(twi_config()->threads, 5);
    CHECK_EQ(twi_config()->timeout, 90000000000);
    CHECK_EQ(twi_config()->window_bytes, 64 << 20);
    CHECK_STR(twi_config()->token, "s3cret");
    CHECK_CONTAINS(logged, "TILEWIRE_WINDOW_BYTES is ignored");
    CHECK_CONTAINS(logged, "\"many\"");
    CHECK_CONTAINS(logged, "TILEWIRE_TRANSPRT is ignored");
    CHECK_CONTAINS(logged, "the closest is TRANSPORT");
    CHECK(strstr(logged, "SEEDS") == NULL);
    CHECK(strstr(logged, "TILEWIRE_ISA") == NULL);
    CHECK(strstr(logged, "s3cret") == NULL);
    CHECK(strstr(logged, "within the sink") == NULL);
    CHECK_STR(shown("TILEWIRE_THREADS"), "5");
    CHECK_STR(shown("TILEWIRE_TIMEOUT"), "90s");
    CHECK_STR(shown("TILEWIRE_ENTER_TIMEOUT"), "30min");
    CHECK_STR(shown("TILEWIRE_WINDOW_BYTES"), "64M");
    CHECK_STR(shown("TILEWIRE_TOKEN"), "set");
    CHECK_STR(shown("TILEWIRE_ISA"), "amx");
    CHECK_STR(find_row("TILEWIRE_TRANSPORT").help, "how ranks reach each other: auto|threads|shm");
    setenv("TILEWIRE_THREADS", "9", 1);
    CHECK_EQ(twi_config()->threads, 5);
    CHECK_STATUS(tw_init(&args), TW_ERR_STATE);
    args.settings = NULL;
    CHECK_STATUS(tw_init(&args), TW_ERR_STATE);
    args.log = NULL;
    CHECK_OK(tw_init(&args));
}

TEST(init_without_tw_init)
{
    unsetenv("TILEWIRE_TOKEN");
    setenv("TILEWIRE_THREADS", "2", 1);
    CHECK_EQ(twi_config()->threads, 2);
    CHECK_STR(shown("TILEWIRE_TOKEN"), "not set");
}

static void refuse_setting(const char *setting, const char *fragment)
{
    const char *const settings[] = {"THREADS=1", setting, NULL};
    tw_init_args_t args = TW_INIT_ARGS_INIT;
    args.settings = settings;
    CHECK_STATUS(tw_init(&args), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "args.settings[1]");
    CHECK_CONTAINS(tw_last_error(), fragment);
}

/* A failed tw_init initialises nothing: the last one, which is right, still may give settings. */
TEST(init_refused)
{
    CHECK_STATUS(tw_init(NULL), TW_ERR_ARGUMENT);
    refuse_setting("THREADS", "NAME=value");
    refuse_setting("=1", "unknown");
    refuse_setting("TREADS=1", "THREADS");
    refuse_setting("THREADS=x", "\"x\"");
    refuse_setting("LOG=loud", "\"loud\"");
    tw_init_args_t args = TW_INIT_ARGS_INIT;
    args.api_version = TW_API_VERSION + 100;
    CHECK_STATUS(tw_init(&args), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "args.api_version");
    args.api_version = TW_API_VERSION + 10000;
    CHECK_STATUS(tw_init(&args), TW_ERR_ARGUMENT);
    args.api_version = -1;
    CHECK_STATUS(tw_init(&args), TW_ERR_ARGUMENT);
    args.api_version = TW_API_VERSION;
    args.struct_size = 3;
    CHECK_STATUS(tw_init(&args), TW_ERR_ARGUMENT);
    char setting[] = "LOG=error";
    const char *const settings[] = {setting, NULL};
    args.struct_size = sizeof args;
    args.settings = settings;
    CHECK_OK(tw_init(&args));
    memset(setting, 'z', sizeof setting - 1);
    CHECK_STR(twi_config()->log, "error");
    CHECK_EQ(tw_version(), TW_API_VERSION);
}

static void *init_thread(void *arg)
{
    return arg != NULL ? (void *)twi_config() : NULL;
}

TEST(init_threads)
{
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, init_thread, threads), 0);
    for (int i = 0; i < 8; i++) {
        void *config;
        CHECK_EQ(pthread_join(threads[i], &config), 0);
        CHECK(config == twi_config());
        CHECK_STR(((const twi_config_t *)config)->log, "warn");
    }
}

/* ---- Log --------------------------------------------------------------------------------------- */

TEST(log_specs)
{
    static const char *const good[] = {
        "none", "warn", "trace", "shm:trace", "warn,shm:trace", "shm:trace,warn", "error,a:none,b_2:info"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        CHECK(twi_log_spec_ok(good[i]));
    static const char *const bad[] = {"",
                                      ",",
                                      "warn,",
                                      ",warn",
                                      "loud",
                                      "WARN",
                                      "warn ",
                                      ":trace",
                                      "shm:",
                                      "shm:x",
                                      "Shm:trace",
                                      "shm:trace:debug",
                                      "abcdefghijklmnop:info"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK(!twi_log_spec_ok(bad[i]));
}

TEST(log_levels)
{
    CHECK(twi_log_enabled(TW_LOG_WARN, "shm"));
    CHECK(!twi_log_enabled(TW_LOG_INFO, "shm"));
    twi_log_setup("error,shm:debug,boot:none,shm:info", collect, logged);
    CHECK(twi_log_enabled(TW_LOG_ERROR, "task"));
    CHECK(!twi_log_enabled(TW_LOG_WARN, "task"));
    CHECK(twi_log_enabled(TW_LOG_INFO, "shm"));
    CHECK(!twi_log_enabled(TW_LOG_DEBUG, "shm"));
    CHECK(!twi_log_enabled(TW_LOG_ERROR, "boot"));
}

TEST(log_lines)
{
    twi_log_setup("info", collect, logged);
    int first, second;
    (void)twi_log_show_rank(&first, 6); /* and never hidden by this thread */
    (void)twi_log_show_rank(&second, 7);
    twi_log_hide_rank(&first);
    errno = EAGAIN;
    TWI_LOG(INFO, "shm", "slot %d: %m\nfaked line\x1b[0m", 4);
    CHECK_EQ(errno, EAGAIN);
    TWI_LOG(DEBUG, "shm", "not shown");
    CHECK_CONTAINS(logged, " info rank 7 shm test_base.c:");
    CHECK_CONTAINS(logged, "slot 4: Resource temporarily unavailable faked line [0m\n");
    CHECK(strstr(logged, "not shown") == NULL);
    char longer[4000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    TWI_LOG(WARN, "shm", "%s", longer);
    const twi_log_rank_t before = twi_log_show_rank(&first, 5); /* which fails to come about */
    (void)twi_log_show_rank(before.owner, before.rank);
    TWI_LOG(INFO, "shm", "again");
    CHECK_CONTAINS(logged, " info rank 7 shm test_base.c:");
    twi_log_hide_rank(&second);
    TWI_LOG(INFO, "shm", "nobody's");
    CHECK_CONTAINS(logged, " info shm test_base.c:");
}

/* ---- Conversions ------------------------------------------------------------------------------- */

static double f16_model(uint16_t h)
{
    const int exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    const double sign = h & 0x8000 ? -1.0 : 1.0;
    if (exponent == 31)
        return mantissa != 0 ? (double)NAN : sign * (double)INFINITY;
    return sign * (exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25));
}

/*
 * Round to nearest even by doubles: the format has `bits` bits of significand, normal exponents from
 * `low`, and what reaches 2^(high+1) after rounding is infinite.
 */
static double round_model(double x, int bits, int low, int high)
{
    if (x == 0 || !isfinite(x))
        return x;
    int exponent;
    (void)frexp(x, &exponent);
    exponent = exponent - 1 < low ? low : exponent - 1;
    const double quantum = ldexp(1, exponent - bits + 1);
    const double rounded = nearbyint(x / quantum) * quantum;
    return fabs(rounded) >= ldexp(1, high + 1) ? copysign((double)INFINITY, x) : rounded;
}

static void check_f16(float x)
{
    const double got = f16_model(twi_f16_from_f32(x)), expected = round_model((double)x, 11, -14, 15);
    if (isnan(x))
        CHECK(isnan(got));
    else if (got != expected || !signbit(got) != !signbit(expected))
        test_fail(__FILE__, __LINE__, "%a to f16: got %a, expected %a", (double)x, got, expected);
}

static void check_bf16(float x)
{
    const double got = (double)twi_f32_from_bf16(twi_bf16_from_f32(x)), expected = round_model((double)x, 8, -126, 127);
    if (isnan(x))
        CHECK(isnan(got));
    else if (got != expected || !signbit(got) != !signbit(expected))
        test_fail(__FILE__, __LINE__, "%a to bf16: got %a, expected %a", (double)x, got, expected);
}

TEST(f16_exact)
{
    for (uint32_t h = 0; h < 65536; h++) {
        const float x = twi_f32_from_f16((uint16_t)h);
        const double model = f16_model((uint16_t)h);
        if (isnan(model)) {
            CHECK(isnan(x));
            CHECK_EQ(twi_f16_from_f32(x), h | 0x200); /* quiet, sign and payload kept */
        } else {
            CHECK((double)x == model && !signbit(x) == !signbit(model));
            CHECK_EQ(twi_f16_from_f32(x), h);
        }
    }
}

TEST(bf16_exact)
{
    for (uint32_t b = 0; b < 65536; b++) {
        const float x = twi_f32_from_bf16((uint16_t)b);
        CHECK_EQ(twi_f32_bits(x), b << 16);
        CHECK_EQ(twi_bf16_from_f32(x), isnan(x) ? b | 0x40 : b);
    }
}

/* Around the middle between every two neighbours, and around the values themselves. */
TEST(f16_ties)
{
    for (uint32_t h = 0; h < 0x7c00; h++) {
        const double a = f16_model((uint16_t)h), b = h == 0x7bff ? 65536.0 : f16_model((uint16_t)(h + 1));
        const float points[] = {(float)a, (float)((a + b) / 2)};
        for (int i = 0; i < 2; i++) {
            check_f16(points[i]);
            check_f16(-points[i]);
            check_f16(nextafterf(points[i], INFINITY));
            check_f16(nextafterf(points[i], -INFINITY));
            check_f16(-nextafterf(points[i], INFINITY));
        }
    }
}

TEST(bf16_ties)
{
    static const uint32_t tails[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (uint32_t b = 0; b < 65536; b++) {
        for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++)
            check_bf16(twi_f32_from_bits(b << 16 | tails[i]));
    }
}

TEST(f16_bf16_spread)
{
    uint32_t bits = 1;
    for (int i = 0; i < 300000; i++) {
        bits = bits * 1664525u + 1013904223u;
        check_f16(twi_f32_from_bits(bits));
        check_bf16(twi_f32_from_bits(bits));
        check_f16(twi_f32_from_bits((bits & 0x8fffffffu) | 0x30000000u)); /* mostly in the range of halves */
    }
    check_f16(INFINITY);
    check_f16(-INFINITY);
    check_f16(65519.996f);
    check_f16(65520.0f);
    check_bf16(INFINITY);
    check_bf16(3.4028235e38f);
}

TEST(dtype_table)
{
    CHECK_EQ(twi_dtype_bytes(TWI_FP16), 2);
    CHECK_EQ(twi_dtype_bytes(TWI_INT128), 16);
    CHECK_EQ(twi_dtype_bytes(13), 0);
    CHECK_EQ(twi_dtype_bytes(TWI_DTYPE_END), 0);
    CHECK_EQ(twi_dtype_bytes(UINT32_MAX), 0);
    CHECK(twi_dtype_reduces(TWI_BFP16));
    CHECK(!twi_dtype_reduces(TWI_INT64));
    CHECK(!twi_dtype_reduces(13));
}

/* ---- Hashes ------------------------------------------------------------------------------------ */

static void to_hex(const uint8_t *bytes, char *text)
{
    for (int i = 0; i < TWI_SHA256_BYTES; i++)
        (void)sprintf(text + 2 * i, "%02x", bytes[i]);
}

static void check_sha256(const void *data, size_t bytes, size_t piece, const char *expected)
{
    twi_sha256_t hash;
    twi_sha256_start(&hash);
    for (size_t done = 0; done < bytes; done += piece)
        twi_sha256_add(&hash, (const char *)data + done, bytes - done < piece ? bytes - done : piece);
    uint8_t digest[TWI_SHA256_BYTES];
    twi_sha256_finish(&hash, digest);
    char text[2 * TWI_SHA256_BYTES + 1];
    to_hex(digest, text);
    CHECK_STR(text, expected);
}

/* The vectors of FIPS 180. */
TEST(sha256_vectors)
{
    check_sha256("", 0, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_sha256("abc", 3, 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    static const char two_blocks[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    check_sha256(two_blocks, 56, 13, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    static char million[1000000];
    memset(million, 'a', sizeof million);
    check_sha256(million, sizeof million, 777, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void check_hmac(const char *key, size_t key_bytes, const char *data, size_t bytes, const char *expected)
{
    twi_hmac_t hmac;
    twi_hmac_start(&hmac, key, key_bytes);
    twi_hmac_add(&hmac, data, bytes / 2);
    twi_hmac_add(&hmac, data + bytes / 2, bytes - bytes / 2);
    uint8_t digest[TWI_SHA256_BYTES];
    twi_hmac_finish(&hmac, digest);
    char text[2 * TWI_SHA256_BYTES + 1];
    to_hex(digest, text);
    CHECK_STR(text, expected);
}

/* The vectors 1, 2, 3, 6 and 7 of RFC 4231. */
TEST(hmac_vectors)
{
    char key[131], data[152];
    memset(key, 0x0b, 20);
    check_hmac(key, 20, "Hi There", 8, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    check_hmac("Jefe", 4, "what do ya want for nothing?", 28,
               "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    memset(data, 0xdd, 50);
    check_hmac(key, 20, data, 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    check_hmac(key, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54,
               "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    static const char longer[] = "This is a test using a larger than block-size key and a larger than block-size data."
                                 " The key needs to be hashed before being used by the HMAC algorithm.";
    check_hmac(key, 131, longer, sizeof longer - 1, "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(same_bytes)
{
    uint8_t a[64], b[64];
    CHECK_OK(twi_random(a, sizeof a));
    memcpy(b, a, sizeof b);
    CHECK(twi_same_bytes(a, b, sizeof a));
    CHECK(twi_same_bytes(a, b, 0));
    for (size_t i = 0; i < sizeof a; i++) {
        b[i] ^= 0x10;
        CHECK(!twi_same_bytes(a, b, sizeof a));
        b[i] ^= 0x10;
    }
}

TEST(random_differs)
{
    uint8_t a[1000] = {0}, b[1000] = {0};
    CHECK_OK(twi_random(a, sizeof a));
    CHECK_OK(twi_random(b, sizeof b));
    CHECK(memcmp(a, b, sizeof a) != 0);
    CHECK_OK(twi_random(a, 0));
}
