/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tw_comm_split: the order of ranks, ranks that stay out, splits of splits, and names.
 */
#include "comm/comm_make.h"

TEST_RANKS(split_order, "1,2,4,5")(tw_comm_t *comm)
{
    const int rank = tw_comm_rank(comm), size = tw_comm_size(comm);
    tw_comm_t *part = NULL;
    CHECK_OK(tw_comm_split(comm, 0, -rank, NULL, &part)); /* all, backwards */
    check_comm(part, size - 1 - rank, size);
    if (size > 1)
        CHECK_EQ(tw_comm_transport(part), tw_comm_transport(comm));
    tw_comm_destroy(part);
    CHECK_OK(tw_comm_split(comm, rank % 2, 7, NULL, &part)); /* halves; equal keys: by rank */
    check_comm(part, rank / 2, (size + 1 - rank % 2) / 2);
    tw_comm_destroy(part);
    CHECK_OK(tw_comm_split(comm, INT32_MAX - rank, INT32_MIN, NULL, &part)); /* everybody alone */
    check_comm(part, 0, 1);
    tw_comm_destroy(part);
    check_comm(comm, rank, size);
}

TEST_RANKS(split_without_some, "1,2,4")(tw_comm_t *comm)
{
    const int rank = tw_comm_rank(comm), size = tw_comm_size(comm);
    tw_comm_t *part = comm;
    CHECK_OK(tw_comm_split(comm, -1, 0, NULL, &part)); /* nobody */
    CHECK(part == NULL);
    part = comm;
    CHECK_OK(tw_comm_split(comm, rank == 0 ? -1 : 3, 0, "others", &part));
    if (rank == 0) {
        CHECK(part == NULL);
    } else {
        CHECK_STR(tw_comm_name(part), "others");
        check_comm(part, rank - 1, size - 1);
    }
    tw_comm_destroy(part);
    check_comm(comm, rank, size);
}

TEST_RANKS(split_of_split, "4")(tw_comm_t *comm)
{
    const int rank = tw_comm_rank(comm);
    tw_comm_t *half = NULL, *quarter = NULL, *whole = NULL;
    CHECK_OK(tw_comm_split(comm, rank / 2, 0, NULL, &half));
    CHECK_OK(tw_comm_split(half, 0, -rank, NULL, &quarter));
    CHECK_OK(tw_comm_split(comm, 0, 0, NULL, &whole));
    check_comm(half, rank % 2, 2);
    check_comm(quarter, 1 - rank % 2, 2);
    check_comm(whole, rank, 4);
    CHECK(strcmp(tw_comm_name(half), tw_comm_name(quarter)) != 0);
    CHECK(strcmp(tw_comm_name(comm), tw_comm_name(whole)) != 0);
    ranks_barrier();
    tw_comm_destroy(half); /* before its child */
    check_comm(quarter, 1 - rank % 2, 2);
    tw_comm_destroy(quarter);
    check_comm(whole, rank, 4);
    tw_comm_destroy(whole);
}

TEST_RANKS(split_arguments, "1,2")(tw_comm_t *comm)
{
    char name[TW_NAME_MAX + 2];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    tw_comm_t *part = NULL;
    REFUSED(tw_comm_split(comm, 0, 0, NULL, NULL), TW_ERR_ARGUMENT, "comm_out");
    REFUSED(tw_comm_split(comm, -2, 0, NULL, &part), TW_ERR_ARGUMENT, "color is -2");
    REFUSED(tw_comm_split(comm, 0, 0, "", &part), TW_ERR_ARGUMENT, "name");
    REFUSED(tw_comm_split(comm, 0, 0, name, &part), TW_ERR_ARGUMENT, "name");
    REFUSED(tw_comm_split(comm, 0, 0, tw_comm_name(comm), &part), TW_ERR_EXISTS, tw_comm_name(comm));
    CHECK(part == NULL);
    check_comm(comm, tw_comm_rank(comm), tw_comm_size(comm));
}

/* The names differ between ranks of one color: all of that color hear of it, the other color works. */
TEST_RANKS(split_names_differ, "4")(tw_comm_t *comm)
{
    const int rank = tw_comm_rank(comm);
    const char *const names[] = {"good", "good", "one", "two"};
    tw_comm_t *part = NULL;
    const tw_status_t status = tw_comm_split(comm, rank / 2, 0, names[rank], &part);
    if (rank < 2) {
        CHECK_OK(status);
        check_comm(part, rank, 2);
        tw_comm_destroy(part);
    } else {
        REFUSED(status, TW_ERR_ARGUMENT, "name");
    }
    check_comm(comm, rank, 4);
}

/* Derived names of parents whose long names differ only at the end. */
static void split_long_names(int rank, void *arg)
{
    (void)arg;
    tw_comm_t *parents[2] = {NULL, NULL}, *parts[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        char name[TW_NAME_MAX + 1] = {0};
        memset(name, 'p', TW_NAME_MAX);
        name[TW_NAME_MAX - 1] = (char)('0' + i);
        tw_comm_args_t args = callback_args(rank, 2);
        args.name = name;
        CHECK_OK(tw_comm_create(&args, &parents[i]));
        CHECK_OK(tw_comm_split(parents[i], 0, 0, NULL, &parts[i]));
    }
    for (int i = 0; i < 2; i++) {
        check_comm(parts[i], rank, 2);
        ranks_barrier();
        tw_comm_destroy(parts[i]);
        tw_comm_destroy(parents[i]);
    }
}
TEST_BARE(split_long_names, 2, NULL)

/* One name for two colors: fine between processes; within one the ranks of a color must agree. */
TEST_RANKS(split_one_name_for_two, "4")(tw_comm_t *comm)
{
    const int rank = tw_comm_rank(comm);
    for (int i = 0; i < 20; i++) {
        tw_comm_t *part = NULL;
        int32_t all[4];
        const int32_t status = tw_comm_split(comm, rank / 2, 0, "both", &part);
        CHECK_EQ(ranks_allgather(NULL, &status, all, sizeof status), 0);
        CHECK_EQ(status, all[rank ^ 1]);
        if (tw_comm_transport(comm) == TW_TRANSPORT_SHM)
            CHECK_EQ(status, TW_OK);
        CHECK(status == TW_OK || status == TW_ERR_EXISTS);
        ranks_barrier();
        tw_comm_destroy(part);
        ranks_barrier();
    }
}
