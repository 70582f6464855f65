/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reduction kernels, written once over vectors of the including file's width. That file, one per
 * ISA level, defines first:
 *   RED_NAME, RED_ISA      its name in reduce.def and its twi_isa_t
 *   RED_BYTES              vector width
 * and, where it has instructions for them:
 *   RED_MAX, RED_MIN       (bits, a, b): of signed lanes
 *   RED_HALVES(x, &lo, &hi), RED_JOINED(lo, hi)   fp16 to two vectors of fp32, and back, rounded
 *   RED_ONE_NAN(x)         fp32, with every NaN replaced by 0x7fc00000
 *   RED_STREAM(p, x), RED_FENCE()   store around the cache to an aligned address
 *
 * A block is read from all sources before it is written to any destination, so a destination may be
 * a source. Partial vectors go through a zero-filled copy, with the same arithmetic.
 *
 * MAX and MIN of floats compare integer keys: the bits with the magnitude of negative values
 * inverted, so that signed order is -inf .. -0, +0 .. +inf, and every NaN at the end that wins.
 */
#include <string.h>

#include "base/dtype.h"
#include "base/sizes.h"
#include "coll/reduce_level.h"

#define INLINE static inline __attribute__((always_inline))
#define VECTOR(name, element) typedef element name __attribute__((vector_size(RED_BYTES)))

VECTOR(u8v, uint8_t);
VECTOR(u16v, uint16_t);
VECTOR(u32v, uint32_t);
VECTOR(i8v, int8_t);
VECTOR(i16v, int16_t);
VECTOR(i32v, int32_t);
VECTOR(f32v, float);
typedef u32v u32v_loose __attribute__((aligned(1), may_alias));

enum {
    BLOCK = 4,          /* vectors; a block is whole lines, a line whole vectors */
    AHEAD_BYTES = 1536, /* prefetch distance: the hardware's own falls behind with two streams or more */
};

/* What is carried from source to source: `hi` only for sums of 16-bit floats. */
typedef struct acc {
    u32v lo, hi;
} acc_t;

INLINE u32v get(const void *p)
{
    return *(const u32v_loose *)p;
}

/* Vector `i` of the block at `at`. */
INLINE u32v get_ahead(const void *p, size_t at, int i)
{
    const char *from = (const char *)p + at + (size_t)i * RED_BYTES;
    if ((size_t)i * RED_BYTES % TWI_CACHE_LINE == 0)
        __builtin_prefetch((const void *)((uintptr_t)from + AHEAD_BYTES)); /* may lie past the end */
    return get(from);
}

INLINE void put(bool stream, void *p, size_t at, u32v x)
{
    char *to = (char *)p + at;
#ifdef RED_STREAM
    if (stream) {
        RED_STREAM(to, x);
        return;
    }
#endif
    (void)stream;
    *(u32v_loose *)to = x;
}

#ifndef RED_MAX
#define DEFINE_LARGER(bits)                                               \
    INLINE u32v larger##bits(u32v a, u32v b, u32v key_a, u32v key_b)      \
    {                                                                     \
        const u32v first = (u32v)((i##bits##v)key_a > (i##bits##v)key_b); \
        return (a & first) | (b & ~first);                                \
    }
DEFINE_LARGER(8)
DEFINE_LARGER(16)
DEFINE_LARGER(32)
#define RED_MAX(bits, a, b) larger##bits(a, b, a, b)
#define RED_MIN(bits, a, b) larger##bits(b, a, a, b)
#endif

#ifndef RED_HALVES
/* The half in the low 16 bits of each lane. The product puts the exponent right, also of denormals. */
INLINE u32v half_to_float(u32v x)
{
    const u32v magnitude = (x & 0x7fffu) << 13;
    const u32v special = (u32v)((i32v)magnitude >= 0x0f800000); /* infinity or NaN */
    const u32v value = (u32v)((f32v)magnitude * 0x1p112f);
    return ((x & 0x8000u) << 16) | value | (special & 0x7f800000u);
}

/* The sum lets the fp32 adder round what becomes a denormal to a multiple of 2^-24. */
INLINE u32v float_to_half(u32v x)
{
    const u32v magnitude = x & 0x7fffffffu;
    const u32v small = (u32v)((i32v)magnitude < 0x38800000);
    const u32v large = (u32v)((i32v)magnitude >= 0x477ff000);
    const u32v is_nan = (u32v)((i32v)magnitude > 0x7f800000);
    const u32v denormal = (u32v)((f32v)(magnitude & small) + 0.5f) - 0x3f000000u;
    const u32v normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const u32v finite = (denormal & small) | (normal & ~small);
    return ((x >> 16) & 0x8000u) | (finite & ~large) | (0x7c00u & large) | (0x7e00u & is_nan);
}

INLINE void halves(u32v x, u32v *lo, u32v *hi)
{
    *lo = half_to_float(x & 0xffffu);
    *hi = half_to_float(x >> 16);
}

INLINE u32v joined(u32v lo, u32v hi)
{
    return float_to_half(lo) | (float_to_half(hi) << 16);
}
#define RED_HALVES(x, lo, hi) halves(x, lo, hi)
#define RED_JOINED(lo, hi) joined(lo, hi)
#endif

#ifndef RED_ONE_NAN
INLINE u32v one_nan(u32v x)
{
    const u32v is_nan = (u32v)((f32v)x != (f32v)x);
    return (x & ~is_nan) | (0x7fc00000u & is_nan);
}
#define RED_ONE_NAN(x) one_nan(x)
#endif

#define DEFINE_KEYS(bits)                                                               \
    INLINE u32v to_key##bits(uint32_t op, u32v raw, int##bits##_t inf)                  \
    {                                                                                   \
        const i##bits##v x = (i##bits##v)raw;                                           \
        const i##bits##v is_nan = (x & INT##bits##_MAX) > inf;                          \
        const i##bits##v key = x ^ ((x >> (bits - 1)) & INT##bits##_MAX);               \
        const int##bits##_t winner = op == TWI_MAX ? INT##bits##_MAX : INT##bits##_MIN; \
        return (u32v)((key & ~is_nan) | (winner & is_nan));                             \
    }                                                                                   \
    INLINE u32v from_key##bits(uint32_t op, u32v raw, int##bits##_t quiet_nan)          \
    {                                                                                   \
        const i##bits##v key = (i##bits##v)raw;                                         \
        const int##bits##_t winner = op == TWI_MAX ? INT##bits##_MAX : INT##bits##_MIN; \
        const i##bits##v is_nan = key == winner;                                        \
        const i##bits##v x = key ^ ((key >> (bits - 1)) & INT##bits##_MAX);             \
        return (u32v)((x & ~is_nan) | (quiet_nan & is_nan));                            \
    }
DEFINE_KEYS(16)
DEFINE_KEYS(32)

INLINE u32v bf16_rounded(u32v x)
{
    const u32v bits = RED_ONE_NAN(x);
    return bits + 0x7fffu + ((bits >> 16) & 1u);
}

INLINE acc_t acc_open(uint32_t dtype, uint32_t op, u32v x)
{
    acc_t acc = {.lo = x, .hi = {0}};
    if (op == TWI_SUM && dtype == TWI_FP16) {
        RED_HALVES(x, &acc.lo, &acc.hi);
    } else if (op == TWI_SUM && dtype == TWI_BFP16) {
        acc.lo = x << 16;
        acc.hi = x & 0xffff0000u;
    } else if (op != TWI_SUM && dtype == TWI_FP32) {
        acc.lo = to_key32(op, x, 0x7f800000);
    } else if (op != TWI_SUM && dtype == TWI_FP16) {
        acc.lo = to_key16(op, x, 0x7c00);
    } else if (op != TWI_SUM && dtype == TWI_BFP16) {
        acc.lo = to_key16(op, x, 0x7f80);
    }
    return acc;
}

INLINE acc_t acc_add(uint32_t dtype, acc_t a, acc_t b)
{
    if (dtype == TWI_INT8)
        a.lo = (u32v)((u8v)a.lo + (u8v)b.lo);
    else if (dtype == TWI_INT16)
        a.lo = (u32v)((u16v)a.lo + (u16v)b.lo);
    else if (dtype == TWI_INT32)
        a.lo = a.lo + b.lo;
    else
        a.lo = (u32v)((f32v)a.lo + (f32v)b.lo);
    if (dtype == TWI_FP16 || dtype == TWI_BFP16)
        a.hi = (u32v)((f32v)a.hi + (f32v)b.hi);
    return a;
}

INLINE acc_t acc_combine(uint32_t dtype, uint32_t op, acc_t a, acc_t b)
{
    const bool max = op == TWI_MAX;
    if (op == TWI_SUM)
        return acc_add(dtype, a, b);
    if (dtype == TWI_INT8)
        a.lo = max ? RED_MAX(8, a.lo, b.lo) : RED_MIN(8, a.lo, b.lo);
    else if (dtype == TWI_INT32 || dtype == TWI_FP32)
        a.lo = max ? RED_MAX(32, a.lo, b.lo) : RED_MIN(32, a.lo, b.lo);
    else
        a.lo = max ? RED_MAX(16, a.lo, b.lo) : RED_MIN(16, a.lo, b.lo);
    return a;
}

INLINE u32v acc_close(uint32_t dtype, uint32_t op, acc_t acc)
{
    const bool sum = op == TWI_SUM;
    switch (dtype) {
    case TWI_FP32:
        return sum ? RED_ONE_NAN(acc.lo) : from_key32(op, acc.lo, 0x7fc00000);
    case TWI_FP16:
        return sum ? RED_JOINED(RED_ONE_NAN(acc.lo), RED_ONE_NAN(acc.hi)) : from_key16(op, acc.lo, 0x7e00);
    case TWI_BFP16:
        return sum ? (bf16_rounded(acc.lo) >> 16) | (bf16_rounded(acc.hi) & 0xffff0000u)
                   : from_key16(op, acc.lo, 0x7fc0);
    default:
        return acc.lo;
    }
}

/* The arrays of one call. */
typedef struct job {
    void *const *dst;
    const void *const *src;
    int n_dst, n_src;
} job_t;

/* `count` vectors, at most BLOCK. */
INLINE void step(uint32_t dtype, uint32_t op, bool stream, const job_t job, size_t at, int count)
{
    acc_t acc[BLOCK];
    for (int i = 0; i < count; i++)
        acc[i] = acc_open(dtype, op, get_ahead(job.src[0], at, i));
    for (int s = 1; s < job.n_src; s++) {
        for (int i = 0; i < count; i++) {
            const acc_t next = acc_open(dtype, op, get_ahead(job.src[s], at, i));
            acc[i] = acc_combine(dtype, op, acc[i], next);
        }
    }
    for (int i = 0; i < count; i++)
        acc[i].lo = acc_close(dtype, op, acc[i]);
    for (int d = 0; d < job.n_dst; d++) {
        for (int i = 0; i < count; i++)
            put(stream, job.dst[d], at + (size_t)i * RED_BYTES, acc[i].lo);
    }
}

/* Less than a vector. */
INLINE void step_part(uint32_t dtype, uint32_t op, const job_t job, size_t at, size_t bytes)
{
    u32v x = {0};
    memcpy(&x, (const char *)job.src[0] + at, bytes);
    acc_t acc = acc_open(dtype, op, x);
    for (int s = 1; s < job.n_src; s++) {
        memcpy(&x, (const char *)job.src[s] + at, bytes);
        acc = acc_combine(dtype, op, acc, acc_open(dtype, op, x));
    }
    x = acc_close(dtype, op, acc);
    for (int d = 0; d < job.n_dst; d++)
        memcpy((char *)job.dst[d] + at, &x, bytes);
}

/* Whole blocks of [at, end); returns where they stop. */
INLINE size_t blocks(uint32_t dtype, uint32_t op, bool stream, const job_t job, size_t at, size_t end)
{
    for (; end - at >= BLOCK * RED_BYTES; at += BLOCK * RED_BYTES)
        step(dtype, op, stream, job, at, BLOCK);
    return at;
}

/* The same, with the common counts known to the compiler and their pointers in registers. */
INLINE size_t blocks_by_count(uint32_t dtype, uint32_t op, bool stream, const job_t job, size_t at, size_t end)
{
    if (job.n_src != 2 || job.n_dst > 2)
        return blocks(dtype, op, stream, job, at, end);
    const void *const src[2] = {job.src[0], job.src[1]};
    void *const dst[2] = {job.dst[0], job.dst[job.n_dst - 1]};
    if (job.n_dst == 1)
        return blocks(dtype, op, stream, (job_t){dst, src, 1, 2}, at, end);
    return blocks(dtype, op, stream, (job_t){dst, src, 2, 2}, at, end);
}

/* All of [at, end) with ordinary stores. */
INLINE void range(uint32_t dtype, uint32_t op, const job_t job, size_t at, size_t end)
{
    at = blocks_by_count(dtype, op, false, job, at, end);
    for (; end - at >= RED_BYTES; at += RED_BYTES)
        step(dtype, op, false, job, at, 1);
    if (at < end)
        step_part(dtype, op, job, at, end - at);
}

#ifdef RED_STREAM
static size_t bytes_to_line(const void *p)
{
    return -(uintptr_t)p % TWI_CACHE_LINE;
}

static void copy_stream(void *dst, const void *src, size_t bytes)
{
    const size_t head = bytes_to_line(dst);
    if (bytes < head + BLOCK * RED_BYTES) {
        memcpy(dst, src, bytes);
        return;
    }
    memcpy(dst, src, head);
    size_t at = head;
    for (; bytes - at >= BLOCK * RED_BYTES; at += BLOCK * RED_BYTES) {
        u32v x[BLOCK];
        for (int i = 0; i < BLOCK; i++)
            x[i] = get_ahead(src, at, i);
        for (int i = 0; i < BLOCK; i++)
            put(true, dst, at + (size_t)i * RED_BYTES, x[i]);
    }
    memcpy((char *)dst + at, (const char *)src + at, bytes - at);
    RED_FENCE();
}

/* Offset of the first whole line of every destination; `bytes` if they disagree or there is none. */
static size_t stream_start(const job_t job, size_t bytes)
{
    const size_t head = bytes_to_line(job.dst[0]);
    for (int d = 1; d < job.n_dst; d++) {
        if (bytes_to_line(job.dst[d]) != head)
            return bytes;
    }
    return head < bytes ? head : bytes;
}
#else
static void copy_stream(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}
#endif

/* Vectors of a row; what is left is copied by bytes. */
INLINE void copy_rows(const twi_rows_t *rows, bool stream)
{
    const char *src = rows->src;
    char *dst = rows->dst;
    for (int64_t i = 0; i < rows->n; i++, src += rows->src_step, dst += rows->dst_step) {
        size_t at = 0;
        for (; rows->bytes - at >= RED_BYTES; at += RED_BYTES)
            put(stream, dst, at, get(src + at));
        if (at < rows->bytes)
            memcpy(dst + at, src + at, rows->bytes - at);
    }
}

static void rows_plain(const twi_rows_t *rows)
{
    copy_rows(rows, false);
}

/* Around the cache only if every row is whole lines: parts of them would be written one by one. */
static void rows_stream(const twi_rows_t *rows)
{
    const uintptr_t odd = (uintptr_t)rows->dst | (uintptr_t)rows->dst_step | rows->bytes;
    copy_rows(rows, odd % TWI_CACHE_LINE == 0);
}

static void copy_all(const job_t job, size_t bytes, bool stream)
{
    for (int d = 0; d < job.n_dst; d++) {
        if (job.dst[d] == job.src[0] || bytes == 0)
            continue;
        if (stream)
            copy_stream(job.dst[d], job.src[0], bytes);
        else
            memcpy(job.dst[d], job.src[0], bytes);
    }
}

#define RED_ARGS void *const *dst, int n_dst, const void *const *src, int n_src, size_t n

#define TW_REDUCE(dtype, op)                                                 \
    static void dtype##_##op##_range(const job_t job, size_t at, size_t end) \
    {                                                                        \
        range(TWI_##dtype, TWI_##op, job, at, end);                          \
    }                                                                        \
    static void dtype##_##op##_plain(RED_ARGS)                               \
    {                                                                        \
        const job_t job = {dst, src, n_dst, n_src};                          \
        const size_t bytes = n * twi_dtype_bytes(TWI_##dtype);               \
        if (n_src == 1)                                                      \
            copy_all(job, bytes, false);                                     \
        else                                                                 \
            dtype##_##op##_range(job, 0, bytes);                             \
    }
#include "coll/reduce.def"
#undef TW_REDUCE

#ifdef RED_STREAM
#define TW_REDUCE(dtype, op)                                                              \
    static void dtype##_##op##_stream(RED_ARGS)                                           \
    {                                                                                     \
        const job_t job = {dst, src, n_dst, n_src};                                       \
        const size_t bytes = n * twi_dtype_bytes(TWI_##dtype);                            \
        if (n_src == 1) {                                                                 \
            copy_all(job, bytes, true);                                                   \
            return;                                                                       \
        }                                                                                 \
        const size_t head = stream_start(job, bytes);                                     \
        dtype##_##op##_range(job, 0, head);                                               \
        const size_t at = blocks_by_count(TWI_##dtype, TWI_##op, true, job, head, bytes); \
        dtype##_##op##_range(job, at, bytes);                                             \
        RED_FENCE();                                                                      \
    }
#else
#define TW_REDUCE(dtype, op)                             \
    static void dtype##_##op##_stream(RED_ARGS)          \
    {                                                    \
        dtype##_##op##_plain(dst, n_dst, src, n_src, n); \
    }
#endif
#include "coll/reduce.def"
#undef TW_REDUCE

#define RED_PASTE_(a, b) a##b
#define RED_PASTE(a, b) RED_PASTE_(a, b)

const twi_reduce_level_t RED_PASTE(twi_reduce_level__, RED_NAME) = {
    .isa = RED_ISA,
    .copy_stream = copy_stream,
    .rows_plain = rows_plain,
    .rows_stream = rows_stream,
    .rows =
        {
#define TW_REDUCE(dtype, op) {TWI_##dtype, TWI_##op, dtype##_##op##_plain, dtype##_##op##_stream},
#include "coll/reduce.def"
#undef TW_REDUCE
        },
};
