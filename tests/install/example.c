/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest program that uses an installed Tilewire: a communicator of one rank. */
#include <stdio.h>
#include <string.h>
#include <tilewire/hccl.h>
#include <tilewire/tilewire.h>

static int allgather_alone(void *user, const void *in, void *out, size_t bytes)
{
    (void)user;
    memcpy(out, in, bytes);
    return 0;
}

int main(void)
{
    if (tw_version() != TW_API_VERSION) {
        fprintf(stderr, "header %d, library %d\n", TW_API_VERSION, tw_version());
        return 1;
    }
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    args.size = 1;
    args.allgather = allgather_alone;
    tw_comm_t *comm = NULL;
    if (tw_comm_create(&args, &comm) != TW_OK || tw_comm_barrier(comm) != TW_OK) {
        fprintf(stderr, "%s\n", tw_last_error());
        return 1;
    }
    printf("rank %d of %d\n", tw_comm_rank(comm), tw_comm_size(comm));
    tw_comm_destroy(comm);
    return 0;
}
