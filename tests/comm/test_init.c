/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start-up: tw_init, settings, the environment, tw_info and the texts of statuses.
 */
#include <stdlib.h>

#include "comm/comm_make.h"

static void init_refused(const char *setting, const char *fragment)
{
    const char *const settings[] = {"LOG=none", setting, NULL};
    tw_init_args_t args = TW_INIT_ARGS_INIT;
    args.settings = settings;
    REFUSED(tw_init(&args), TW_ERR_ARGUMENT, "settings[1]");
    CHECK_CONTAINS(tw_last_error(), fragment);
}

TEST(init_arguments)
{
    tw_init_args_t args = TW_INIT_ARGS_INIT;
    REFUSED(tw_init(NULL), TW_ERR_ARGUMENT, "args");
    args.struct_size = 3;
    REFUSED(tw_init(&args), TW_ERR_ARGUMENT, "struct_size");
    args = (tw_init_args_t)TW_INIT_ARGS_INIT;
    static const int versions[] = {-1, 200, TW_API_VERSION + 100, TW_API_VERSION + 10000};
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        args.api_version = versions[i];
        REFUSED(tw_init(&args), TW_ERR_ARGUMENT, "api_version");
    }
    init_refused("NOSUCH=1", "NOSUCH");
    init_refused("TIMEOUT", "NAME=value");
    init_refused("TIMEOUT=soon", "TIMEOUT");
    init_refused("WINDOW_BYTES=-1", "WINDOW_BYTES");
    init_refused("PROFILE=a9", "PROFILE");
    init_refused("=", "settings");
    args = (tw_init_args_t)TW_INIT_ARGS_INIT; /* what was refused left nothing behind */
    const char *const settings[] = {"WINDOW_BYTES=1M", "TIMEOUT=7s", NULL};
    args.settings = settings;
    CHECK_OK(tw_init(&args));
    REFUSED(tw_init(&args), TW_ERR_STATE, "settings");
    args.settings = NULL;
    CHECK_OK(tw_init(&args));
    tw_comm_t *comm = alone(NULL);
    void *ptr = NULL;
    REFUSED(tw_mem_alloc(comm, (1 << 20) + 1, &ptr), TW_ERR_NO_MEMORY, "1048576");
    tw_comm_destroy(comm);
}

TEST(init_is_late)
{
    const char *const settings[] = {"TIMEOUT=7s", NULL};
    tw_comm_t *comm = alone(NULL); /* initialises */
    tw_init_args_t args = TW_INIT_ARGS_INIT;
    CHECK_OK(tw_init(&args));
    args.settings = settings;
    REFUSED(tw_init(&args), TW_ERR_STATE, "settings");
    tw_comm_destroy(comm);
}

TEST(environment_is_read)
{
    CHECK_EQ(setenv("TILEWIRE_WINDOW_BYTES", "2M", 1), 0);
    CHECK_EQ(setenv("TILEWIRE_TIMEOUT", "nonsense", 1), 0); /* a warning */
    tw_comm_t *comm = alone(NULL);
    void *ptr = NULL;
    CHECK_OK(tw_mem_alloc(comm, 2 << 20, &ptr));
    REFUSED(tw_mem_alloc(comm, 1, &ptr), TW_ERR_NO_MEMORY, "2097152");
    tw_comm_destroy(comm);
}

TEST(info_rows)
{
    enum { SECTIONS = 6 };
    static const char *const sections[SECTIONS] = {"version", "cpu", "topology", "kernel", "transport", "config"};
    unsigned seen[SECTIONS] = {0};
    unsigned n = 0;
    tw_info_row_t row;
    REFUSED(tw_info(0, NULL), TW_ERR_ARGUMENT, "row_out");
    for (; tw_info(n, &row) == TW_OK; n++) {
        CHECK(row.section != NULL && row.name != NULL && row.value != NULL && row.help != NULL);
        CHECK(row.name[0] != '\0');
        int section = 0;
        while (section < SECTIONS && strcmp(sections[section], row.section) != 0)
            section++;
        CHECK(section < SECTIONS);
        seen[section]++;
        if (strcmp(row.name, "tilewire") == 0)
            CHECK_STR(row.value, "0.1.0");
    }
    for (int i = 0; i < SECTIONS; i++)
        CHECK(seen[i] > 0);
    REFUSED(tw_info(n, &row), TW_ERR_NOT_FOUND, "index");
    REFUSED(tw_info(UINT32_MAX, &row), TW_ERR_NOT_FOUND, "index");
    CHECK_EQ(tw_version(), TW_API_VERSION);
}

/* Secrets are not shown. */
TEST(info_hides_the_token)
{
    CHECK_EQ(setenv("TILEWIRE_TOKEN", "open sesame", 1), 0);
    tw_info_row_t row;
    for (unsigned i = 0; tw_info(i, &row) == TW_OK; i++)
        CHECK(strstr(row.value, "sesame") == NULL);
}

TEST(statuses_have_texts)
{
    for (int s = -100; s < 10; s++) {
        const char *text = tw_status_string((tw_status_t)s);
        CHECK(text != NULL && text[0] != '\0');
    }
}
