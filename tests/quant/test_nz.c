/* SPDX-License-Identifier: Apache-2.0 */
/* ND to NZ and back, element by element against the formula of the layout. */
#include "quant/quant.h"
#include "tensors.h"

enum { FILLING = 0xa5, MARGIN = 64 };

static const tw_dtype_t types[] = {TW_DTYPE_INT8, TW_DTYPE_BF16, TW_DTYPE_FP16, TW_DTYPE_FP32, TW_DTYPE_INT64};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* ---- The model -------------------------------------------------------------------------------- */

static int64_t model_offset(int64_t rows, int64_t c0, int64_t i, int64_t j)
{
    return (((j / c0) * ceil_div(rows, 16) + i / 16) * 16 + i % 16) * c0 + j % c0;
}

static int64_t model_matrix(int64_t rows, int64_t cols, int64_t c0)
{
    return ceil_div(cols, c0) * ceil_div(rows, 16) * 16 * c0;
}

/* ---- Fixed examples --------------------------------------------------------------------------- */

TEST(nz_example)
{
    int64_t shape[] = {20, 40};
    int8_t nd[20][40] = {{0}};
    uint8_t nz[2048];
    nd[17][33] = 77;
    const tw_tensor_t tensor = make_tensor(nd, type_int8, 2, shape);
    size_t bytes = 0;
    CHECK_OK(tw_nz_bytes(&tensor, &bytes));
    CHECK_EQ(bytes, 2048);
    CHECK_OK(tw_nz_from_nd(&tensor, nz, sizeof nz));
    for (int i = 0; i < 2048; i++)
        CHECK_EQ(nz[i], i == 1569 ? 77 : 0);
}

TEST(nz_columns_of_a_block)
{
    int64_t shape[] = {1, 1};
    static const int expected[] = {512, 512, 512, 1024, 2048};
    for (int i = 0; i < LENGTH(types); i++) {
        const tw_tensor_t tensor = make_tensor(NULL, types[i], 2, shape);
        size_t bytes = 0;
        CHECK_OK(tw_nz_bytes(&tensor, &bytes));
        CHECK_EQ(bytes, expected[i]);
    }
}

TEST(nz_empty)
{
    int64_t shapes[][3] = {{0, 3, 4}, {2, 0, 4}, {2, 3, 0}};
    for (int i = 0; i < LENGTH(shapes); i++) {
        const tw_tensor_t tensor = make_tensor(NULL, type_int8, 3, shapes[i]);
        size_t bytes = 7;
        CHECK_OK(tw_nz_bytes(&tensor, &bytes));
        CHECK_EQ(bytes, 0);
        CHECK_OK(tw_nz_from_nd(&tensor, NULL, 0));
        CHECK_OK(tw_nz_to_nd(NULL, 0, &tensor));
    }
}

/* ---- Round trips ------------------------------------------------------------------------------ */

/* A batch of (n_outer, n_inner) matrices in a buffer of its own, seen through some strides. */
typedef struct view {
    int64_t shape[4], strides[4];
    uint8_t *memory;
    size_t bytes;
    tw_tensor_t tensor;
} view_t;

enum { PLAIN, LEADING, TRANSPOSED, SPREAD, BACKWARDS, BATCH_INSIDE, N_LAYOUTS };

static void set_strides(view_t *view, int layout)
{
    const int64_t outer = view->shape[0], inner = view->shape[1], rows = view->shape[2], cols = view->shape[3];
    const int64_t by_layout[N_LAYOUTS][4] = {
        [PLAIN] = {inner * rows * cols, rows * cols, cols, 1},
        [LEADING] = {inner * rows * (cols + 3), rows * (cols + 3), cols + 3, 1},
        [TRANSPOSED] = {inner * rows * cols, rows * cols, 1, rows},
        [SPREAD] = {inner * rows * cols * 2, rows * cols * 2, cols * 2, 2},
        [BACKWARDS] = {inner * rows * cols, rows * cols, -cols, -1},
        [BATCH_INSIDE] = {1, outer, outer * inner * cols, outer * inner},
    };
    memcpy(view->strides, by_layout[layout], sizeof view->strides);
}

static void make_view(view_t *view, const int64_t *shape, tw_dtype_t dtype, int layout)
{
    memcpy(view->shape, shape, sizeof view->shape);
    set_strides(view, layout);
    const size_t item = dtype.bits / 8u;
    size_t last = 0; /* distance between the outermost elements */
    int64_t before = 0;
    for (int dim = 0; dim < 4; dim++) {
        last += (size_t)((shape[dim] - 1) * llabs(view->strides[dim]));
        before += view->strides[dim] < 0 ? (shape[dim] - 1) * -view->strides[dim] : 0;
    }
    view->bytes = (last + 1) * item;
    view->memory = must_alloc(view->bytes);
    view->tensor = make_tensor(view->memory, dtype, 4, view->shape);
    view->tensor.strides = view->strides;
    view->tensor.byte_offset = (uint64_t)before * item;
}

static uint8_t *element(const view_t *view, const int64_t *at)
{
    int64_t offset = 0;
    for (int dim = 0; dim < 4; dim++)
        offset += at[dim] * view->strides[dim];
    return (uint8_t *)view->tensor.data + (int64_t)view->tensor.byte_offset + offset * (view->tensor.dtype.bits / 8);
}

/* Every element of the tensor is in its place, and all other bytes are zero. */
static void check_nz(const view_t *view, const uint8_t *nz, int64_t bytes)
{
    const int64_t item = view->tensor.dtype.bits / 8, c0 = item == 1 ? 32 : 16;
    const int64_t rows = view->shape[2], cols = view->shape[3], matrix = model_matrix(rows, cols, c0);
    uint8_t *expected = calloc(1, (size_t)bytes);
    CHECK(expected != NULL);
    CHECK_EQ(bytes, view->shape[0] * view->shape[1] * matrix * item);
    for (int64_t batch = 0; batch < view->shape[0] * view->shape[1]; batch++) {
        for (int64_t cell = 0; cell < rows * cols; cell++) {
            const int64_t at[] = {batch / view->shape[1], batch % view->shape[1], cell / cols, cell % cols};
            memcpy(expected + (batch * matrix + model_offset(rows, c0, at[2], at[3])) * item, element(view, at),
                   (size_t)item);
        }
    }
    CHECK(memcmp(nz, expected, (size_t)bytes) == 0);
    free(expected);
}

/* Bytes between the elements of a view stay as they are. */
static void check_same_elements(const view_t *from, const view_t *to)
{
    const size_t item = from->tensor.dtype.bits / 8u;
    uint8_t *touched = calloc(1, to->bytes);
    CHECK(touched != NULL);
    int64_t at[4];
    for (at[0] = 0; at[0] < from->shape[0]; at[0]++)
        for (at[1] = 0; at[1] < from->shape[1]; at[1]++)
            for (at[2] = 0; at[2] < from->shape[2]; at[2]++)
                for (at[3] = 0; at[3] < from->shape[3]; at[3]++) {
                    CHECK(memcmp(element(from, at), element(to, at), item) == 0);
                    memset(touched + (element(to, at) - to->memory), 1, item);
                }
    for (size_t i = 0; i < to->bytes; i++)
        CHECK(touched[i] || to->memory[i] == FILLING);
    free(touched);
}

static void round_trip(const int64_t *shape, tw_dtype_t dtype, int layout)
{
    view_t from, to;
    size_t bytes = 0;
    make_view(&from, shape, dtype, layout);
    make_view(&to, shape, dtype, (layout + 1) % N_LAYOUTS);
    for (size_t i = 0; i < from.bytes; i++)
        from.memory[i] = (uint8_t)random_bits();
    memset(to.memory, FILLING, to.bytes);
    CHECK_OK(tw_nz_bytes(&from.tensor, &bytes));
    uint8_t *nz = must_alloc(bytes + 1 + MARGIN);
    memset(nz, FILLING, bytes + 1 + MARGIN);
    CHECK_OK(tw_nz_from_nd(&from.tensor, nz + 1, bytes + MARGIN)); /* any alignment */
    check_nz(&from, nz + 1, (int64_t)bytes);
    for (size_t i = 0; i < MARGIN; i++)
        CHECK_EQ(nz[1 + bytes + i], FILLING);
    CHECK_OK(tw_nz_to_nd(nz + 1, bytes, &to.tensor));
    check_same_elements(&from, &to);
    free(nz);
    free(from.memory);
    free(to.memory);
}

TEST(nz_round_trips)
{
    static const int64_t shapes[][4] = {
        {1, 1, 1, 1}, {1, 1, 16, 16}, {1, 1, 16, 32}, {1, 1, 17, 33}, {1, 1, 15, 31},  {1, 1, 1, 100},  {1, 1, 100, 1},
        {2, 3, 5, 7}, {3, 1, 33, 17}, {1, 2, 48, 64}, {2, 2, 31, 49}, {1, 1, 300, 40}, {2, 1, 513, 16},
    };
    random_start();
    for (int shape = 0; shape < LENGTH(shapes); shape++)
        for (int type = 0; type < LENGTH(types); type++)
            for (int layout = 0; layout < N_LAYOUTS; layout++)
                round_trip(shapes[shape], types[type], layout);
}

/* A transposed view of [n,k] is stored as (k,n): the NZ bytes of its contiguous copy. */
TEST(nz_of_a_transposed_view)
{
    enum { K = 37, N = 21 };
    uint16_t stored[N][K], plain[K][N];
    for (int n = 0; n < N; n++)
        for (int k = 0; k < K; k++)
            plain[k][n] = stored[n][k] = (uint16_t)(n * 100 + k);
    int64_t shape[] = {K, N}, strides[] = {1, K};
    tw_tensor_t view = make_tensor(stored, types[1], 2, shape);
    const tw_tensor_t copy = make_tensor(plain, types[1], 2, shape);
    view.strides = strides;
    static uint8_t a[48 * 32 * 2], b[48 * 32 * 2];
    CHECK_OK(tw_nz_from_nd(&view, a, sizeof a));
    CHECK_OK(tw_nz_from_nd(&copy, b, sizeof b));
    CHECK(memcmp(a, b, sizeof a) == 0);
}

/* An input may repeat a row by stride 0. */
TEST(nz_of_a_repeated_row)
{
    int8_t row[] = {1, 2, 3};
    int64_t shape[] = {4, 3}, strides[] = {0, 1};
    uint8_t nz[512];
    tw_tensor_t view = make_tensor(row, type_int8, 2, shape);
    view.strides = strides;
    CHECK_OK(tw_nz_from_nd(&view, nz, sizeof nz));
    for (int i = 0; i < 512; i++)
        CHECK_EQ(nz[i], i / 32 < 4 && i % 32 < 3 ? i % 32 + 1 : 0);
}

/* ---- Misuse ----------------------------------------------------------------------------------- */

TEST(nz_bad_arguments)
{
    int64_t shape[] = {20, 40};
    uint8_t nd[800], nz[2048];
    size_t bytes = 7;
    const tw_tensor_t good = make_tensor(nd, type_int8, 2, shape);
    const tw_tensor_t line = make_tensor(nd, type_int8, 1, shape), gone = make_tensor(NULL, type_int8, 2, shape);
    CHECK_REFUSED(tw_nz_bytes(NULL, &bytes), "nd is NULL");
    CHECK_REFUSED(tw_nz_bytes(&good, NULL), "bytes_out is NULL");
    CHECK_REFUSED(tw_nz_bytes(&line, &bytes), "nd.ndim is 1");
    CHECK_REFUSED(tw_nz_from_nd(NULL, nz, sizeof nz), "nd is NULL");
    CHECK_REFUSED(tw_nz_from_nd(&line, nz, sizeof nz), "nd.ndim is 1");
    CHECK_REFUSED(tw_nz_from_nd(&gone, nz, sizeof nz), "nd.data is NULL");
    CHECK_REFUSED(tw_nz_from_nd(&good, NULL, sizeof nz), "nz is NULL");
    CHECK_REFUSED(tw_nz_from_nd(&good, nz, 2047), "nz_bytes is 2047, must be at least 2048");
    CHECK_REFUSED(tw_nz_to_nd(NULL, sizeof nz, &good), "nz is NULL");
    CHECK_REFUSED(tw_nz_to_nd(nz, 0, &good), "nz_bytes is 0");
    CHECK_REFUSED(tw_nz_to_nd(nz, sizeof nz, NULL), "nd is NULL");
    CHECK_REFUSED(tw_nz_to_nd(nz, sizeof nz, &line), "nd.ndim is 1");
    tw_tensor_t heaped = good;
    heaped.strides = (int64_t[]){40, 0};
    CHECK_REFUSED(tw_nz_to_nd(nz, sizeof nz, &heaped), "nd.strides[1] is 0");
    CHECK_EQ(bytes, 7);
}

TEST(nz_too_large)
{
    int64_t tall[] = {INT64_MAX, 1}, wide[] = {1, INT64_MAX}, many[] = {INT64_C(1) << 54, 1, 1}, none[] = {0, 0};
    size_t bytes = 7;
    tw_tensor_t tensor = make_tensor(NULL, type_int8, 2, tall);
    tensor.strides = none;
    CHECK_REFUSED(tw_nz_bytes(&tensor, &bytes), "nd.shape (9223372036854775807, 1)");
    tensor.shape = wide;
    CHECK_REFUSED(tw_nz_bytes(&tensor, &bytes), "nd.shape (1, 9223372036854775807)");
    tensor = make_tensor(NULL, type_int8, 3, many);
    CHECK_REFUSED(tw_nz_bytes(&tensor, &bytes), "do not fit 64 bits");
    many[0] = (INT64_C(1) << 54) - 1;
    CHECK_OK(tw_nz_bytes(&tensor, &bytes));
    CHECK_EQ(bytes, many[0] * 512);
}
