/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limits of profiles a2 and a3, on both sides of each. Sizes too large to allocate go straight to the
 * check; that operators use it, and that communicators without a profile do not, is shown by calls.
 */
#include "api/profile.h"
#include "ops/op_args.h"

enum {
#define TW_OP(NAME, name) OP_##NAME,
#include "ops/ops.def"
#undef TW_OP
    OP_COUNT
};

#define MIB (INT64_C(1) << 20)

/* A call that both profiles allow where they have the operator. */
static twi_profile_call_t allowed(int kind)
{
    return (twi_profile_call_t){
        .kind = kind,
        .mode = TWI_PROFILE_FLOAT,
        .world = 8,
        .m = 1024,
        .k = 1024,
        .n = 512,
        .stored = 512,
    };
}

#define KEEPS(profile, call) CHECK_OK(twi_profile_check(profile, &(call)))
#define BREAKS(profile, call, fragment)                                     \
    do {                                                                    \
        CHECK_STATUS(twi_profile_check(profile, &(call)), TW_ERR_ARGUMENT); \
        CHECK_CONTAINS(tw_last_error(), fragment);                          \
        CHECK_OK(twi_profile_check(TW_PROFILE_NONE, &(call)));              \
    } while (0)

/* Both ends of a range: the values outside are named in the message. */
#define RANGE(profile, call, field, name, least, most)                                                                \
    do {                                                                                                              \
        char range_text_[96];                                                                                         \
        const int64_t range_was_ = (call).field;                                                                      \
        (call).field = (least);                                                                                       \
        KEEPS(profile, call);                                                                                         \
        (call).field = (most);                                                                                        \
        KEEPS(profile, call);                                                                                         \
        (call).field = (least)-1;                                                                                     \
        (void)snprintf(range_text_, sizeof range_text_, "profile %s: %s is %lld, ", twi_profile_name(profile), name,  \
                       (long long)((least)-1));                                                                       \
        BREAKS(profile, call, range_text_);                                                                           \
        (call).field = (most) + INT64_C(1);                                                                           \
        (void)snprintf(range_text_, sizeof range_text_, "%s is %lld, ", name, (long long)((most) + INT64_C(1)));      \
        BREAKS(profile, call, range_text_);                                                                           \
        (void)snprintf(range_text_, sizeof range_text_, " allows %lld..%lld", (long long)(least), (long long)(most)); \
        CHECK_CONTAINS(tw_last_error(), range_text_);                                                                 \
        (call).field = range_was_;                                                                                    \
    } while (0)

/* ---- Products and ranks ------------------------------------------------------------------------ */

/* Every number of ranks up to 130 is allowed exactly if the list has it. */
static void check_worlds(tw_profile_t profile, int kind, const int *worlds)
{
    for (int w = 1; w <= 130; w++) {
        twi_profile_call_t call = allowed(kind);
        bool listed = false;
        call.world = w;
        for (int i = 0; worlds[i] > 0; i++)
            listed |= worlds[i] == w;
        if (listed) {
            KEEPS(profile, call);
            continue;
        }
        char text[64];
        (void)snprintf(text, sizeof text, "profile %s: comm has %d ranks, ", twi_profile_name(profile), w);
        BREAKS(profile, call, text);
    }
}

TEST(numbers_of_ranks)
{
    const int a2_mm[] = {2, 4, 8, 0}, a3_mm[] = {2, 4, 8, 16, 32, 0}, a2_reduce[] = {1, 2, 4, 8, 0};
    check_worlds(TW_PROFILE_A2, OP_MM_REDUCE_SCATTER, a2_mm);
    check_worlds(TW_PROFILE_A2, OP_ALL_GATHER_MM, a2_mm);
    check_worlds(TW_PROFILE_A3, OP_MM_REDUCE_SCATTER, a3_mm);
    check_worlds(TW_PROFILE_A3, OP_ALL_GATHER_MM, a3_mm);
    check_worlds(TW_PROFILE_A2, OP_MM_ALL_REDUCE, a2_reduce);
    twi_profile_call_t call = allowed(OP_MM_REDUCE_SCATTER);
    call.world = 3;
    BREAKS(TW_PROFILE_A2, call, "mm_reduce_scatter allows 2, 4, 8");
}

TEST(not_available)
{
    twi_profile_call_t call = allowed(OP_MM_ALL_REDUCE);
    BREAKS(TW_PROFILE_A3, call, "profile a3: mm_all_reduce is not available");
    call.kind = OP_GMM_ALLTOALLV;
    BREAKS(TW_PROFILE_A2, call, "profile a2: gmm_alltoallv is not available");
    call.kind = OP_ALLTOALLV_GMM;
    BREAKS(TW_PROFILE_A2, call, "profile a2: alltoallv_gmm is not available");
}

/* ---- Ranges ------------------------------------------------------------------------------------ */

TEST(k_of_products)
{
    const int kinds[] = {OP_MM_REDUCE_SCATTER, OP_ALL_GATHER_MM};
    for (int i = 0; i < 2; i++) {
        for (tw_profile_t profile = TW_PROFILE_A2; profile <= TW_PROFILE_A3; profile++) {
            twi_profile_call_t call = allowed(kinds[i]);
            RANGE(profile, call, k, "k", 256, 65534);
            call.mode = TWI_PROFILE_A8W8;
            RANGE(profile, call, k, "k", 256, 65534);
        }
    }
}

TEST(sizes_of_all_reduce)
{
    twi_profile_call_t call = allowed(OP_MM_ALL_REDUCE);
    const twi_profile_mode_t modes[] = {TWI_PROFILE_FLOAT, TWI_PROFILE_A16W8, TWI_PROFILE_A8W8};
    for (int i = 0; i < 3; i++) {
        const int64_t most = modes[i] == TWI_PROFILE_FLOAT ? INT32_MAX : 65535;
        call.mode = modes[i];
        RANGE(TW_PROFILE_A2, call, m, "m", 1, INT32_MAX);
        RANGE(TW_PROFILE_A2, call, k, "k", 1, most);
        if (modes[i] != TWI_PROFILE_A8W8)
            RANGE(TW_PROFILE_A2, call, n, "n", 1, most);
    }
    RANGE(TW_PROFILE_A2, call, stored, "n", 1, 65535);
    call.n = 1 << 20; /* of a transposed x2, whose last size in memory is k */
    call.stored = call.k;
    KEEPS(TW_PROFILE_A2, call);
}

/* ---- Grouped operators ------------------------------------------------------------------------- */

enum { COUNTS_MAX = 64 * 64 };

typedef struct grouped {
    twi_profile_call_t call;
    int64_t send[COUNTS_MAX], recv[COUNTS_MAX];
} grouped_t;

/* All counts alike, so that each rank has `rows` rows of expert 0, none of the others. */
static void set_rows(grouped_t *g, int64_t rows)
{
    g->call.n_counts = g->call.experts * g->call.world;
    memset(g->send, 0, sizeof g->send);
    memset(g->recv, 0, sizeof g->recv);
    for (int64_t w = 0; w < g->call.world; w++)
        g->send[w * g->call.experts] = g->recv[w * g->call.experts] = rows;
}

static void make_grouped(grouped_t *g, int kind)
{
    g->call = allowed(kind);
    g->call.experts = 2;
    g->call.bsk = g->call.m = 8192;
    g->call.send_counts = g->send;
    g->call.recv_counts = g->recv;
    set_rows(g, 1024); /* times H1 = 1024: 2 MiB */
}

TEST(ranks_of_grouped_operators)
{
    static grouped_t g;
    for (int kind = OP_GMM_ALLTOALLV; kind <= OP_ALLTOALLV_GMM; kind++) {
        for (int w = 1; w <= 130; w++) {
            make_grouped(&g, kind);
            g.call.experts = 1;
            g.call.world = w;
            set_rows(&g, 1024);
            if (w == 8 || w == 16 || w == 32 || w == 64)
                KEEPS(TW_PROFILE_A3, g.call);
            else
                BREAKS(TW_PROFILE_A3, g.call, " allows 8, 16, 32, 64");
        }
    }
}

TEST(sizes_of_grouped_operators)
{
    static grouped_t g;
    for (int kind = OP_GMM_ALLTOALLV; kind <= OP_ALLTOALLV_GMM; kind++) {
        make_grouped(&g, kind);
        RANGE(TW_PROFILE_A3, g.call, n, "N1", 1, 65535);
        RANGE(TW_PROFILE_A3, g.call, bsk, "BSK", 1, 52428799);
        g.call.m = 0;
        BREAKS(TW_PROFILE_A3, g.call, "A is 0, ");
        g.call.m = 1;
        KEEPS(TW_PROFILE_A3, g.call);
        make_grouped(&g, kind);
        set_rows(&g, MIB); /* H1 = 1 is the least, and 50 the most that these rows allow */
        g.call.k = 1;
        KEEPS(TW_PROFILE_A3, g.call);
        g.call.k = 0;
        BREAKS(TW_PROFILE_A3, g.call, "H1 is 0, ");
        set_rows(&g, 17);
        g.call.k = 65535;
        KEEPS(TW_PROFILE_A3, g.call);
        g.call.k = 65536;
        BREAKS(TW_PROFILE_A3, g.call, "H1 is 65536, ");
    }
}

TEST(experts)
{
    static grouped_t g;
    for (int kind = OP_GMM_ALLTOALLV; kind <= OP_ALLTOALLV_GMM; kind++) {
        make_grouped(&g, kind);
        g.call.experts = 32;
        set_rows(&g, 1024);
        KEEPS(TW_PROFILE_A3, g.call); /* e * W = 256 too */
        g.call.experts = 33;
        set_rows(&g, 1024);
        BREAKS(TW_PROFILE_A3, g.call, "profile a3: e is 33, ");
        g.call.world = 16;
        g.call.experts = 16;
        set_rows(&g, 1024);
        KEEPS(TW_PROFILE_A3, g.call);
        g.call.experts = 17;
        set_rows(&g, 1024);
        BREAKS(TW_PROFILE_A3, g.call, "e * W is 272, ");
    }
}

TEST(shared_experts)
{
    static grouped_t g;
    for (int kind = OP_GMM_ALLTOALLV; kind <= OP_ALLTOALLV_GMM; kind++) {
        make_grouped(&g, kind);
        g.call.shared = true;
        g.call.bs = 4096;
        g.call.h2 = g.call.n2 = 64;
        RANGE(TW_PROFILE_A3, g.call, h2, "H2", 1, 12288);
        RANGE(TW_PROFILE_A3, g.call, n2, "N2", 1, 65535);
        g.call.bsk = 2 * 4096 - 1;
        BREAKS(TW_PROFILE_A3, g.call, "profile a3: K = BSK / BS is 8191 / 4096, ");
        g.call.bsk = 8 * 4096;
        KEEPS(TW_PROFILE_A3, g.call);
        g.call.bsk = 8 * 4096 + 1;
        BREAKS(TW_PROFILE_A3, g.call, "K = BSK / BS is 32769 / 4096, ");
        CHECK_CONTAINS(tw_last_error(), " allows 2..8");
        g.call.bsk = 2 * 4096;
        KEEPS(TW_PROFILE_A3, g.call);
        g.call.bs = 0;
        BREAKS(TW_PROFILE_A3, g.call, "K = BSK / BS is 8192 / 0, ");
        g.call.shared = false;
        g.call.h2 = g.call.n2 = 0;
        KEEPS(TW_PROFILE_A3, g.call);
    }
}

/* Each rank's share in either list, the own one too, from 1 Mi to 50 Mi elements. */
TEST(volume)
{
    static grouped_t g;
    for (int kind = OP_GMM_ALLTOALLV; kind <= OP_ALLTOALLV_GMM; kind++) {
        make_grouped(&g, kind);
        for (int list = 0; list < 2; list++) {
            int64_t *counts = list ? g.recv : g.send;
            for (int64_t peer = 0; peer < g.call.world; peer += 7) {
                int64_t *first = &counts[peer * 2], *second = first + 1;
                char text[96];
                *first = 1000;
                *second = 24;
                KEEPS(TW_PROFILE_A3, g.call);
                *second = 23;
                (void)snprintf(text, sizeof text, "profile a3: %s has 1023 rows of H1 = 1024 for rank %lld, ",
                               list ? "recv_counts" : "send_counts", (long long)peer);
                BREAKS(TW_PROFILE_A3, g.call, text);
                *second = 50200;
                KEEPS(TW_PROFILE_A3, g.call);
                *second = 50201;
                BREAKS(TW_PROFILE_A3, g.call, "allows 2..100 MiB a rank");
                *first = *second = 0;
                BREAKS(TW_PROFILE_A3, g.call, "has 0 rows");
                *first = INT64_MAX;
                BREAKS(TW_PROFILE_A3, g.call, "9223372036854775807 rows");
                *first = 1024;
                *second = 0;
            }
        }
    }
}

/* ---- Bias and formats -------------------------------------------------------------------------- */

TEST(bias_of_reduce_scatter)
{
    float bias[3] = {0.0f, -0.0f, 0.0f};
    CHECK_OK(twi_profile_check_bias(TW_PROFILE_A2, OP_MM_REDUCE_SCATTER, NULL, 3));
    CHECK_OK(twi_profile_check_bias(TW_PROFILE_A2, OP_MM_REDUCE_SCATTER, bias, 3));
    bias[2] = 0.5f;
    CHECK_OK(twi_profile_check_bias(TW_PROFILE_A2, OP_MM_REDUCE_SCATTER, bias, 2));
    REFUSED(twi_profile_check_bias(TW_PROFILE_A2, OP_MM_REDUCE_SCATTER, bias, 3), TW_ERR_ARGUMENT,
            "profile a2: bias[2] is 0.5, mm_reduce_scatter allows 0");
    REFUSED(twi_profile_check_bias(TW_PROFILE_A3, OP_MM_REDUCE_SCATTER, bias, 3), TW_ERR_ARGUMENT, "profile a3");
    CHECK_OK(twi_profile_check_bias(TW_PROFILE_A2, OP_ALL_GATHER_MM, bias, 3));
    CHECK_OK(twi_profile_check_bias(TW_PROFILE_NONE, OP_MM_REDUCE_SCATTER, bias, 3));
}

TEST(nz_of_floats)
{
    twi_profile_call_t call = allowed(OP_MM_ALL_REDUCE);
    call.nz = true;
    BREAKS(TW_PROFILE_A2, call, "profile a2: format is TW_FORMAT_NZ (1), mm_all_reduce allows it for int8 x2 only");
    call.mode = TWI_PROFILE_A16W8;
    KEEPS(TW_PROFILE_A2, call);
    call.mode = TWI_PROFILE_A8W8;
    KEEPS(TW_PROFILE_A2, call);
    call.kind = OP_MM_REDUCE_SCATTER;
    call.mode = TWI_PROFILE_FLOAT;
    BREAKS(TW_PROFILE_A2, call, "format is TW_FORMAT_NZ");
    KEEPS(TW_PROFILE_A3, call);
}

/* ---- Communicators ----------------------------------------------------------------------------- */

static tw_comm_t *alone_with(const char *name, tw_profile_t profile)
{
    tw_comm_args_t args = alone_args();
    tw_comm_t *comm = NULL;
    args.name = name;
    args.profile = profile;
    CHECK_OK(tw_comm_create(&args, &comm));
    return comm;
}

TEST(unknown_profile)
{
    tw_comm_args_t args = alone_args();
    tw_comm_t *comm = NULL;
    args.profile = (tw_profile_t)4;
    REFUSED(tw_comm_create(&args, &comm), TW_ERR_ARGUMENT, "profile 4 is not one of tw_profile_t");
    args.profile = (tw_profile_t)-1;
    REFUSED(tw_comm_create(&args, &comm), TW_ERR_ARGUMENT, "profile -1");
    CHECK(comm == NULL);
}

TEST(profile_of_a_communicator)
{
    op_call_t call;
    op_open(&call);
    tw_comm_t *relaxed = alone_with("relaxed", TW_PROFILE_DEFAULT), *a2 = alone_with("a2", TW_PROFILE_A2),
              *a3 = alone_with("a3", TW_PROFILE_A3);
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    REDUCE_REFUSED(a3, call, "profile a3: mm_all_reduce is not available");
    REDUCE_ACCEPTED(relaxed, call);
    REDUCE_ACCEPTED(a2, call);
    make_scatter(&call, a2, type_bf16);
    SCATTER_REFUSED(a2, call, "profile a2: comm has 1 ranks, mm_reduce_scatter allows 2, 4, 8");
    SCATTER_ACCEPTED(relaxed, call);
    make_gather(&call, a3, type_bf16);
    GATHER_REFUSED(a3, call, "profile a3: comm has 1 ranks, all_gather_mm allows 2, 4, 8, 16, 32");
    make_combine(&call, a2, type_bf16);
    COMBINE_REFUSED(a2, call, "profile a2: gmm_alltoallv is not available");
    COMBINE_ACCEPTED(relaxed, call);
    make_dispatch(&call, a3, type_bf16);
    DISPATCH_REFUSED(a3, call, "profile a3: comm has 1 ranks, alltoallv_gmm allows 8, 16, 32, 64");
    tw_comm_destroy(relaxed);
    tw_comm_destroy(a2);
    tw_comm_destroy(a3);
    op_close(&call);
}

TEST(profile_of_the_environment)
{
    const char *const settings[] = {"PROFILE=a3", NULL};
    tw_init_args_t args = TW_INIT_ARGS_INIT;
    args.settings = settings;
    CHECK_OK(tw_init(&args));
    op_call_t call;
    op_open(&call);
    tw_comm_t *preset = alone_with("preset", TW_PROFILE_DEFAULT), *none = alone_with("none", TW_PROFILE_NONE);
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    REDUCE_REFUSED(preset, call, "profile a3: mm_all_reduce is not available");
    REDUCE_ACCEPTED(none, call);
    tw_comm_destroy(preset);
    tw_comm_destroy(none);
    op_close(&call);
}

TEST(parts_inherit_the_profile)
{
    op_call_t call;
    op_open(&call);
    tw_comm_t *comm = alone_with("whole", TW_PROFILE_A3), *part = NULL;
    CHECK_OK(tw_comm_split(comm, 0, 0, "part", &part));
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    REDUCE_REFUSED(part, call, "profile a3: mm_all_reduce is not available");
    tw_comm_destroy(part);
    tw_comm_destroy(comm);
    op_close(&call);
}

/* What the operators tell the check about themselves. */
TEST(modes_of_calls)
{
    op_call_t call;
    op_open(&call);
    tw_comm_t *comm = alone_with("a2", TW_PROFILE_A2);
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    call.reduce.format = TW_FORMAT_NZ;
    REDUCE_REFUSED(comm, call, "profile a2: format is TW_FORMAT_NZ (1)");
    tw_weight_args_t packing = TW_WEIGHT_ARGS_INIT;
    tw_weight_t *weight = NULL;
    packing.x2 = &call.x2.t;
    packing.format = TW_FORMAT_NZ;
    CHECK_OK(tw_weight_pack(&packing, &weight));
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    call.reduce.x2 = NULL;
    call.reduce.weight = weight;
    REDUCE_REFUSED(comm, call, "profile a2: format is TW_FORMAT_NZ (1)");
    tw_weight_release(weight);
    make_reduce_int8(&call, type_bf16);
    call.reduce.format = TW_FORMAT_NZ;
    REDUCE_ACCEPTED(comm, call);
    make_reduce_int8(&call, type_bf16);
    set_shape(&call.x1, 2, M, 65536, 1);
    set_strides(&call.x1, 0, 1, 1);
    set_shape(&call.x2, 2, 65536, N, 1);
    set_strides(&call.x2, 0, 1, 1);
    REDUCE_REFUSED(comm, call, "profile a2: k is 65536, mm_all_reduce allows 1..65535");
    make_reduce(&call, type_bf16, type_int8, type_bf16);
    set_shape(&call.x1, 2, M, 65536, 1);
    set_strides(&call.x1, 0, 1, 1);
    set_shape(&call.x2, 2, 65536, N, 1);
    set_strides(&call.x2, 0, 1, 1);
    set_box(&call.scale, type_bf16, 1, 1, 1, 1);
    call.reduce.antiquant_scale = &call.scale.t;
    REDUCE_REFUSED(comm, call, "profile a2: k is 65536, mm_all_reduce allows 1..65535");
    tw_comm_destroy(comm);
    op_close(&call);
}

/* n of int8 is the last size of x2 in memory, which is k of a transposed one. */
TEST(stored_sizes_of_calls)
{
    enum { WIDE = 65536 };
    static int8_t x2[WIDE];
    static uint16_t y[WIDE];
    op_call_t call;
    op_open(&call);
    tw_comm_t *comm = alone_with("a2", TW_PROFILE_A2);
    make_reduce_int8(&call, type_bf16);
    set_shape(&call.dequant, 1, 1, 1, 1);
    set_shape(&call.x1, 2, 1, 1, 1);
    set_shape(&call.x2, 2, 1, WIDE, 1);
    set_shape(&call.y, 2, 1, WIDE, 1);
    call.x2.t.data = x2;
    call.y.t.data = y;
    REDUCE_REFUSED(comm, call, "profile a2: n is 65536, mm_all_reduce allows 1..65535");
    set_shape(&call.x1, 2, 1, 2, 1);
    set_shape(&call.x2, 2, 2, WIDE / 2, 1);
    set_strides(&call.x2, 1, 2, 1);
    set_shape(&call.y, 2, 1, WIDE / 2, 1);
    REDUCE_ACCEPTED(comm, call);
    set_shape(&call.y, 2, 1, WIDE, 1);
    set_shape(&call.x2, 2, 2, WIDE, 1);
    set_strides(&call.x2, 1, 0, 1); /* columns in one place take no memory */
    REDUCE_ACCEPTED(comm, call);
    tw_weight_t *weight = op_pack(&call.x2, NULL);
    call.reduce.x2 = NULL;
    call.reduce.weight = weight;
    REDUCE_ACCEPTED(comm, call);
    tw_weight_release(weight);
    tw_comm_destroy(comm);
    op_close(&call);
}

TEST_RANKS(limits_on_two_ranks, "2")(tw_comm_t *parent)
{
    tw_comm_args_t args = callback_args(tw_comm_rank(parent), 2);
    tw_comm_t *comm = NULL;
    op_call_t call;
    args.transport = tw_comm_transport(parent);
    args.profile = TW_PROFILE_A2;
    CHECK_OK(tw_comm_create(&args, &comm));
    op_open(&call);
    make_scatter(&call, comm, type_bf16);
    SCATTER_REFUSED(comm, call, "profile a2: k is 96, mm_reduce_scatter allows 256..65534");
    set_shape(&call.x1, 2, M, 256, 1);
    set_shape(&call.x2, 2, 256, N, 1);
    SCATTER_ACCEPTED(comm, call);
    set_box(&call.bias, type_bf16, 1, N, 1, 1);
    call.scatter.bias = &call.bias.t;
    SCATTER_ACCEPTED(comm, call);
    ((uint16_t *)call.bias.t.data)[N - 1] = 0x3f80;
    tw_op_t *op = NULL;
    REFUSED(tw_mm_reduce_scatter(comm, &call.scatter), TW_ERR_ARGUMENT,
            "profile a2: bias[7] is 1, mm_reduce_scatter allows 0");
    CHECK_OK(tw_mm_reduce_scatter_prepare(comm, &call.scatter, &op));
    REFUSED(tw_op_start(op), TW_ERR_ARGUMENT, "profile a2: bias[7] is 1");
    ((uint16_t *)call.bias.t.data)[N - 1] = 0;
    CHECK_OK(tw_op_start(op));
    CHECK_OK(tw_op_wait(op, 0));
    tw_op_release(op);
    make_gather(&call, comm, type_bf16);
    GATHER_REFUSED(comm, call, "profile a2: k is 96, all_gather_mm allows 256..65534");
    tw_comm_destroy(comm);
    op_close(&call);
}

/* Under a2 the operators of a process use one communicator; ranks of it are one, and so are those of a relaxed one. */
TEST(one_communicator)
{
    op_call_t call;
    op_open(&call);
    tw_comm_t *first = alone_with("first", TW_PROFILE_A2), *second = alone_with("second", TW_PROFILE_A2),
              *relaxed = alone_with("third", TW_PROFILE_NONE);
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    REDUCE_ACCEPTED(relaxed, call);
    REDUCE_ACCEPTED(first, call);
    REDUCE_ACCEPTED(first, call);
    memset(call.y.t.data, Y_FILL, BOX_BYTES);
    REDUCE_REFUSED(second, call,
                   "profile a2: comm is 'second', but operators of this process use 'first', and one "
                   "communicator is allowed");
    REDUCE_ACCEPTED(relaxed, call);
    tw_comm_destroy(first);
    REDUCE_ACCEPTED(second, call);
    tw_comm_destroy(second);
    tw_comm_destroy(relaxed);
    op_close(&call);
}

/* The layout of items of BatchWrite goes with the profile of the communicator, not with that of the process. */
TEST_RANKS(batch_write_profiles, "2")(tw_comm_t *parent)
{
    const int rank = tw_comm_rank(parent);
    tw_comm_args_t args = callback_args(rank, 2);
    tw_comm_t *comm = NULL;
    session_t session;
    args.transport = tw_comm_transport(parent);
    args.profile = TW_PROFILE_A3;
    CHECK_OK(tw_comm_create(&args, &comm));
    session_open(&session, comm);
    const int32_t number = 1000 + rank;
    int32_t *to = tw_hccl_window_in(session.hccl, (uint32_t)!rank);
    const uint64_t from_at = (uint64_t)(uintptr_t)&number, to_at = (uint64_t)(uintptr_t)to;
    const tw_hccl_batch_item_a3_t item = {.length = 4,
                                          .src_low = (uint32_t)from_at,
                                          .src_high = (uint32_t)(from_at >> 32),
                                          .dst_low = (uint32_t)to_at,
                                          .dst_high = (uint32_t)(to_at >> 32)};
    CHECK_EQ(tw_hccl_batch_write(session.hccl, &item, 1, 0), 0);
    CHECK_EQ(tw_hccl_wait(session.hccl, 0), 0);
    ranks_barrier();
    CHECK_EQ(*(int32_t *)tw_hccl_window_in(session.hccl, (uint32_t)rank), 1000 + !rank);
    session_close(&session);
    tw_comm_destroy(comm);
}
