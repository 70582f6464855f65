/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights: sizes, memory, opening what others packed, and products that take them. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "call.h"
#include "gemm/weight.h"

/* The weight of the call's x2, which then is not given any more. */
static tw_weight_args_t weight_args(const call_t *call)
{
    tw_weight_args_t args = TW_WEIGHT_ARGS_INIT;
    args.x2 = &call->x2.t;
    args.format = call->args.format;
    args.antiquant_scale = call->args.antiquant_scale;
    args.antiquant_offset = call->args.antiquant_offset;
    args.antiquant_group_size = call->args.antiquant_group_size;
    return args;
}

static void use_weight(call_t *call, const tw_weight_t *weight)
{
    call->args.x2 = NULL;
    call->args.format = TW_FORMAT_ND;
    call->args.antiquant_scale = call->args.antiquant_offset = NULL;
    call->args.antiquant_group_size = 0;
    call->args.weight = weight;
}

#define CHECK_PACK_REFUSED(args, fragment)                                   \
    do {                                                                     \
        tw_weight_t *untouched_ = (tw_weight_t *)(void *)&(args);            \
        CHECK_STATUS(tw_weight_pack(&(args), &untouched_), TW_ERR_ARGUMENT); \
        CHECK_CONTAINS(tw_last_error(), fragment);                           \
        CHECK(untouched_ == (tw_weight_t *)(void *)&(args));                 \
    } while (0)

/* The same from the size query. */
#define CHECK_BOTH_REFUSED(args, fragment)                                \
    do {                                                                  \
        size_t bytes_ = 77;                                               \
        CHECK_PACK_REFUSED(args, fragment);                               \
        CHECK_STATUS(tw_weight_bytes(&(args), &bytes_), TW_ERR_ARGUMENT); \
        CHECK_CONTAINS(tw_last_error(), fragment);                        \
        CHECK_EQ(bytes_, 77);                                             \
    } while (0)

static size_t need(const tw_weight_args_t *args)
{
    size_t bytes = 0;
    CHECK_OK(tw_weight_bytes(args, &bytes));
    return bytes;
}

/* Small integers, so that sums are exact. */
static void fill_call(call_t *call)
{
    float *x1 = call->x1.t.data, *x2 = call->x2.t.data;
    for (int i = 0; i < M * K; i++)
        x1[i] = (float)(i % 7 - 3);
    for (int i = 0; i < E * K * N; i++)
        x2[i] = (float)(i % 11 - 5);
}

/* ---- Arguments -------------------------------------------------------------------------------- */

TEST(null)
{
    call_t call = {0};
    size_t bytes;
    tw_weight_t *weight;
    make_call(&call, type_bf16, type_bf16, type_bf16);
    tw_weight_args_t args = weight_args(&call);
    CHECK_STATUS(tw_weight_bytes(NULL, &bytes), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "args is NULL");
    CHECK_STATUS(tw_weight_pack(NULL, &weight), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "args is NULL");
    CHECK_STATUS(tw_weight_bytes(&args, NULL), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "bytes_out is NULL");
    CHECK_STATUS(tw_weight_pack(&args, NULL), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "weight_out is NULL");
    args.x2 = NULL;
    CHECK_BOTH_REFUSED(args, "x2 is NULL");
    tw_weight_release(NULL);
}

TEST(matrices)
{
    call_t call = {0};
    make_call(&call, type_fp64, type_fp64, type_fp64);
    tw_weight_args_t args = weight_args(&call);
    CHECK_BOTH_REFUSED(args, "x2.dtype is fp64, must be");
    call.x2.t.dtype = type_bf16;
    set_shape(&call.x2, 1, K, 1, 1);
    CHECK_BOTH_REFUSED(args, "x2.ndim is 1, must be 2, or 3");
    set_shape(&call.x2, 3, 0, K, N);
    CHECK_BOTH_REFUSED(args, "x2.shape[0] is 0, must be 1..");
    set_shape(&call.x2, 2, K, N, 1);
    set_strides(&call.x2, 2, 200, 1);
    CHECK_BOTH_REFUSED(args, "x2.strides[0] is 2 and x2.strides[1] is 200, one of them must be 1");
    args.format = (tw_format_t)-1;
    CHECK_BOTH_REFUSED(args, "format is -1, must be");
    args.format = TW_FORMAT_NZ;
    CHECK_BOTH_REFUSED(args, "in NZ format");
    args.format = TW_FORMAT_ND;
    call.x2.t.dtype = type_int8;
    set_shape(&call.x2, 2, 131072, N, 1);
    CHECK_PACK_REFUSED(args, "x2 has k = 131072, must be below 131072 in int8 products");
    call.x2.t.dtype = type_bf16;
    set_shape(&call.x2, 2, INT64_C(1) << 31, INT64_C(1) << 31, 1);
    CHECK_STATUS(tw_weight_bytes(&args, &(size_t){0}), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "x2");
}

TEST(scales)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    add_antiquant(&call, type_bf16, true);
    tw_weight_args_t args = weight_args(&call);
    CHECK_BOTH_REFUSED(args, "antiquant_scale is given, but x2.dtype is bf16");
    call.x2.t.dtype = type_int8;
    call.scale.t.dtype = type_fp32;
    CHECK_BOTH_REFUSED(args, "antiquant_scale.dtype is fp32, must be fp16 or bf16");
    call.scale.t.dtype = type_fp16;
    CHECK_BOTH_REFUSED(args, "antiquant_offset.dtype is bf16, must be fp16");
    call.offset.t.dtype = type_fp16;
    CHECK(need(&args) > 0);
    args.antiquant_group_size = 40;
    CHECK_BOTH_REFUSED(args, "antiquant_group_size is 40, must be a multiple of 32");
    args.antiquant_group_size = 32;
    CHECK_BOTH_REFUSED(args, "antiquant_scale.shape is (8), must be (3, 8)");
    args.antiquant_group_size = 0;
    args.antiquant_scale = NULL;
    CHECK_BOTH_REFUSED(args, "antiquant_offset is given, but antiquant_scale is NULL");
}

/* The size query does not look at memory, and packing does. */
TEST(bytes_without_data)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_int8, type_bf16);
    add_antiquant(&call, type_bf16, true);
    tw_weight_args_t args = weight_args(&call);
    const size_t bytes = need(&args);
    CHECK(bytes >= K * N);
    call.scale.t.data = call.offset.t.data = NULL;
    CHECK_EQ(need(&args), bytes);
    CHECK_PACK_REFUSED(args, "antiquant_scale.data is NULL");
    call.x2.t.data = NULL;
    CHECK_EQ(need(&args), bytes);
    CHECK_PACK_REFUSED(args, "x2.data is NULL");
}

/* ---- Memory ----------------------------------------------------------------------------------- */

TEST(own_memory)
{
    call_t call = {0};
    make_call(&call, type_fp32, type_fp32, type_fp32);
    fill_call(&call);
    tw_weight_args_t args = weight_args(&call);
    tw_weight_t *weight = NULL;
    CHECK_OK(tw_weight_pack(&args, &weight));
    float plain[M * N];
    CHECK_OK(tw_matmul(NULL, &call.args));
    memcpy(plain, call.y.t.data, sizeof plain);
    memset(call.y.t.data, Y_FILL, BOX_BYTES);
    use_weight(&call, weight);
    CHECK_OK(tw_matmul(NULL, &call.args));
    CHECK(memcmp(plain, call.y.t.data, sizeof plain) == 0);
    tw_weight_t *other = NULL;
    CHECK_STATUS(tw_weight_open(weight, need(&args), &other), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "the library's own memory");
    unsigned char page;
    CHECK_EQ(mincore(weight, 1, &page), 0);
    tw_weight_release(weight);
    CHECK_EQ(mincore(weight, 1, &page), -1);
    CHECK_EQ(errno, ENOMEM);
    args.memory_bytes = 5;
    CHECK_PACK_REFUSED(args, "memory_bytes is 5, but memory is NULL");
}

TEST(large_memory)
{
    call_t call = {0};
    make_call(&call, type_fp32, type_fp32, type_fp32);
    set_shape(&call.x2, 2, 1024, 777, 1);
    call.x2.t.data = calloc(1024 * 777, sizeof(float));
    CHECK(call.x2.t.data != NULL);
    tw_weight_args_t args = weight_args(&call);
    tw_weight_t *weight = NULL;
    CHECK_OK(tw_weight_pack(&args, &weight));
    CHECK_EQ((uintptr_t)weight % (2 << 20), 0);
    CHECK(weight->owned >= need(&args));
    CHECK_EQ(weight->owned % (2 << 20), 0);
    unsigned char page;
    char *end = (char *)weight + weight->owned;
    CHECK_EQ(mincore(end - 4096, 1, &page), 0);
    tw_weight_release(weight);
    CHECK_EQ(mincore(end - 4096, 1, &page), -1);
    free(call.x2.t.data);
}

TEST(callers_memory)
{
    call_t call = {0};
    make_call(&call, type_fp32, type_fp32, type_fp32);
    fill_call(&call);
    tw_weight_args_t args = weight_args(&call);
    const size_t bytes = need(&args);
    char *memory = aligned_alloc(64, bytes + 128);
    CHECK(memory != NULL);
    memset(memory, Y_FILL, bytes + 128);
    tw_weight_t *weight = NULL;
    args.memory = memory + 8;
    args.memory_bytes = bytes;
    CHECK_PACK_REFUSED(args, "is not aligned to 64 bytes");
    args.memory = memory;
    args.memory_bytes = bytes - 1;
    CHECK_STATUS(tw_weight_pack(&args, &weight), TW_ERR_NO_MEMORY);
    char text[80];
    (void)snprintf(text, sizeof text, "memory_bytes is %zu, must be at least %zu", bytes - 1, bytes);
    CHECK_CONTAINS(tw_last_error(), text);
    CHECK(weight == NULL);
    CHECK_EQ(memory[0], Y_FILL);
    args.memory_bytes = bytes;
    CHECK_OK(tw_weight_pack(&args, &weight));
    CHECK((char *)weight == memory);
    CHECK_EQ(memory[bytes], Y_FILL);
    tw_weight_release(weight); /* leaves it alone */
    use_weight(&call, weight);
    CHECK_OK(tw_matmul(NULL, &call.args));
    free(memory);
}

/* ---- Opening ---------------------------------------------------------------------------------- */

/* A weight in memory of the caller, of *bytes_out bytes. */
static char *pack_shared(const call_t *call, size_t *bytes_out)
{
    tw_weight_args_t args = weight_args(call);
    *bytes_out = need(&args);
    tw_weight_t *weight = NULL;
    args.memory = test_shared_alloc(*bytes_out);
    args.memory_bytes = *bytes_out;
    CHECK_OK(tw_weight_pack(&args, &weight));
    return args.memory;
}

TEST(open_refuses)
{
    call_t call = {0};
    size_t bytes;
    make_call(&call, type_bf16, type_int8, type_bf16);
    add_antiquant(&call, type_bf16, true);
    char *memory = pack_shared(&call, &bytes);
    tw_weight_t *weight = NULL;
    CHECK_STATUS(tw_weight_open(NULL, bytes, &weight), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "memory is NULL");
    CHECK_STATUS(tw_weight_open(memory, bytes, NULL), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "weight_out is NULL");
    CHECK_STATUS(tw_weight_open(memory + 4, bytes - 4, &weight), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "is not aligned to 64 bytes");
    const size_t cut[] = {0, 1, sizeof(tw_weight_t) - 1, sizeof(tw_weight_t), bytes - 1};
    for (int i = 0; i < 5; i++) {
        CHECK_STATUS(tw_weight_open(memory, cut[i], &weight), TW_ERR_ARGUMENT);
        CHECK_CONTAINS(tw_last_error(), "memory ");
    }
    CHECK(weight == NULL);
    CHECK_OK(tw_weight_open(memory, bytes, &weight));
    CHECK((char *)weight == memory);
    weight = NULL;
    memory[0] ^= 1;
    CHECK_STATUS(tw_weight_open(memory, bytes, &weight), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "memory holds no packed weight");
    memory[0] ^= 1;
    ((tw_weight_t *)(void *)memory)->kernel[0] ^= 1;
    CHECK_STATUS(tw_weight_open(memory, bytes, &weight), TW_ERR_UNSUPPORTED);
    CHECK(weight == NULL);
}

/* No header that was tampered with is taken for one that could lead a product out of its memory. */
TEST(open_damaged)
{
    call_t call = {0};
    size_t bytes;
    make_call(&call, type_bf16, type_int8, type_bf16);
    add_antiquant(&call, type_bf16, true);
    char *memory = pack_shared(&call, &bytes);
    const tw_weight_t good = *(tw_weight_t *)(void *)memory;
    for (size_t at = 0; at < offsetof(tw_weight_t, owned); at++) {
        if (at >= offsetof(tw_weight_t, kernel) && at < offsetof(tw_weight_t, kind))
            continue; /* behind the end of the name nothing is looked at */
        for (int bit = 0; bit < 8; bit++) {
            tw_weight_t *weight = NULL;
            memory[at] = (char)(memory[at] ^ (1 << bit));
            const tw_status_t status = tw_weight_open(memory, bytes, &weight);
            if (status == TW_OK) {
                CHECK(weight->bytes <= bytes && weight->scale_at < (int64_t)bytes &&
                      weight->panels_at < (int64_t)bytes);
                CHECK(weight->k >= 0 && weight->n >= 0 && weight->panel_bytes >= 0);
            }
            memcpy(memory, &good, sizeof good);
        }
    }
}

TEST(open_elsewhere)
{
    call_t call = {0};
    make_call(&call, type_fp32, type_fp32, type_fp32);
    fill_call(&call);
    float plain[M * N];
    CHECK_OK(tw_matmul(NULL, &call.args));
    memcpy(plain, call.y.t.data, sizeof plain);
    memset(call.y.t.data, Y_FILL, BOX_BYTES);
    tw_weight_args_t args = weight_args(&call);
    args.memory_bytes = need(&args);
    const int fd = memfd_create("weight", 0);
    CHECK(fd >= 0);
    CHECK_EQ(ftruncate(fd, (off_t)args.memory_bytes), 0);
    args.memory = mmap(NULL, args.memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    void *elsewhere = mmap(NULL, args.memory_bytes, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(args.memory != MAP_FAILED && elsewhere != MAP_FAILED && elsewhere != args.memory);
    tw_weight_t *weight = NULL;
    CHECK_OK(tw_weight_pack(&args, &weight));
    CHECK_EQ(munmap(args.memory, args.memory_bytes), 0);
    CHECK_OK(tw_weight_open(elsewhere, args.memory_bytes, &weight));
    CHECK(weight == elsewhere);
    use_weight(&call, weight);
    CHECK_OK(tw_matmul(NULL, &call.args));
    CHECK(memcmp(plain, call.y.t.data, sizeof plain) == 0);
    tw_weight_release(weight);
    CHECK_EQ(munmap(elsewhere, args.memory_bytes), 0);
    CHECK_EQ(close(fd), 0);
}

/* ---- In products ------------------------------------------------------------------------------ */

TEST(weight_with_other_arguments)
{
    call_t call = {0};
    size_t bytes;
    make_call(&call, type_bf16, type_int8, type_bf16);
    add_antiquant(&call, type_bf16, true);
    const tw_weight_t *weight = (void *)pack_shared(&call, &bytes);
    use_weight(&call, weight);
    CHECK_ACCEPTED(call);
    call.args.x2 = &call.x2.t;
    CHECK_REFUSED(call, "x2 and weight are both given");
    call.args.x2 = NULL;
    call.args.format = TW_FORMAT_NZ;
    CHECK_REFUSED(call, "format is 1, but weight is given");
    call.args.format = TW_FORMAT_ND;
    call.args.antiquant_scale = &call.scale.t;
    CHECK_REFUSED(call, "antiquant_scale is given, but weight has its own");
    call.args.antiquant_scale = NULL;
    call.args.antiquant_offset = &call.offset.t;
    CHECK_REFUSED(call, "antiquant_offset is given, but weight has its own");
    call.args.antiquant_offset = NULL;
    call.args.antiquant_group_size = 32;
    CHECK_REFUSED(call, "antiquant_group_size is 32, but weight has its own");
    call.args.antiquant_group_size = 0;
    call.args.counts = call.counts;
    call.args.n_counts = E;
    CHECK_REFUSED(call, "n_counts is 2, must be the 1 matrices of weight");
}

TEST(weight_of_another_kind)
{
    call_t call = {0};
    size_t bytes;
    make_call(&call, type_bf16, type_int8, type_bf16);
    add_antiquant(&call, type_bf16, true);
    const tw_weight_t *weight = (void *)pack_shared(&call, &bytes);
    make_call(&call, type_fp16, type_fp16, type_fp16);
    use_weight(&call, weight);
    CHECK_REFUSED(call, "does not go with x1.dtype fp16");
    make_call(&call, type_int8, type_int8, type_int32);
    use_weight(&call, weight);
    CHECK_REFUSED(call, "does not go with x1.dtype int8");
    make_call(&call, type_bf16, type_bf16, type_bf16);
    use_weight(&call, weight);
    set_shape(&call.x1, 2, M, K + 1, 1);
    CHECK_REFUSED(call, "x1.shape is (4, 97), its last size must be k = 96 of weight");
    use_weight(&call, call.x2.t.data); /* zeros */
    CHECK_REFUSED(call, "weight holds no packed weight");
}

TEST(weight_of_groups)
{
    call_t call = {0};
    size_t bytes;
    make_call(&call, type_fp32, type_fp32, type_fp32);
    add_counts(&call);
    fill_call(&call);
    float plain[M * N];
    CHECK_OK(tw_matmul(NULL, &call.args));
    memcpy(plain, call.y.t.data, sizeof plain);
    memset(call.y.t.data, Y_FILL, BOX_BYTES);
    use_weight(&call, (void *)pack_shared(&call, &bytes));
    call.args.counts = NULL;
    call.args.n_counts = 0;
    CHECK_REFUSED(call, "counts is NULL, but weight has 2 matrices");
    call.args.counts = call.counts;
    call.args.n_counts = E;
    CHECK_OK(tw_matmul(NULL, &call.args));
    CHECK(memcmp(plain, call.y.t.data, sizeof plain) == 0);
}

TEST(weight_that_y_overlaps)
{
    call_t call = {0};
    size_t bytes;
    make_call(&call, type_bf16, type_bf16, type_bf16);
    char *memory = pack_shared(&call, &bytes);
    use_weight(&call, (void *)memory);
    call.y.t.data = memory + bytes - 64;
    CHECK_STATUS(tw_matmul(NULL, &call.args), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "overlaps weight");
}

/* Empty weights are weights too. */
TEST(empty)
{
    const int64_t sizes[][2] = {{0, N}, {K, 0}, {0, 0}};
    for (int i = 0; i < 3; i++) {
        call_t call = {0};
        make_call(&call, type_bf16, type_int8, type_fp32);
        add_antiquant(&call, type_bf16, false);
        set_shape(&call.scale, 1, 1, 1, 1);
        set_shape(&call.x1, 2, M, sizes[i][0], 1);
        set_shape(&call.x2, 2, sizes[i][0], sizes[i][1], 1);
        set_shape(&call.y, 2, M, sizes[i][1], 1);
        call.x2.t.data = NULL;
        tw_weight_args_t args = weight_args(&call);
        tw_weight_t *weight = NULL;
        CHECK_OK(tw_weight_pack(&args, &weight));
        use_weight(&call, weight);
        CHECK_OK(tw_matmul(NULL, &call.args));
        for (int j = 0; j < M * sizes[i][1]; j++)
            CHECK_EQ(((float *)call.y.t.data)[j], 0);
        tw_weight_release(weight);
    }
}
