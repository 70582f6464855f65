/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel-side calls with arbitrary arguments on a communicator of one rank. The input is a program:
 * a byte chooses a call, the next ones its arguments. A call whose buffers are as large as its
 * arguments say is made; one that must be refused is made whatever they say; what would be the
 * caller's own overrun is left out. The sanitizers see everything that the library touches.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tilewire/hccl.h>

#include "base/dtype.h"

#define BUFFER_BYTES 8192u
#define TILING_BYTES (sizeof(tw_hccl_init_tiling_t) + 6 * sizeof(tw_hccl_cc_tiling_t))
#define ARGS_BYTES 66000u /* more than any struct_size that is looked at */
#define CALLS_MAX 200

typedef unsigned __int128 wide_t;

typedef struct program {
    const uint8_t *at;
    const uint8_t *end;
    tw_hccl_context_t *contexts[2];
    tw_hccl_t *hccl[2];
    uint8_t *tilings[2]; /* exact allocations */
    uint8_t *send;
    uint8_t *recv;
} program_t;

static tw_comm_t *comms[2];

static void require(bool cond)
{
    if (!cond)
        abort();
}

/* ---- Reading the input ------------------------------------------------------------------------ */

static uint8_t byte(program_t *p)
{
    return p->at < p->end ? *p->at++ : 0;
}

static uint64_t word(program_t *p)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value |= (uint64_t)byte(p) << (8 * i);
    return value;
}

/* Small numbers, numbers near the ends of their range, and any. */
static uint64_t number(program_t *p)
{
    const uint8_t how = byte(p);
    switch (how & 7) {
    case 0:
        return word(p);
    case 1:
        return UINT64_MAX - byte(p);
    case 2:
        return UINT64_MAX / (1u + byte(p));
    case 3:
        return (uint64_t)1 << (byte(p) & 63);
    default:
        return byte(p);
    }
}

static void bytes(program_t *p, void *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)out)[i] = byte(p);
}

/* ---- Set-up ----------------------------------------------------------------------------------- */

static int allgather(void *user, const void *in, void *out, size_t n)
{
    (void)user;
    memcpy(out, in, n);
    return 0;
}

static tw_comm_args_t comm_args(void)
{
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    args.size = 1;
    args.allgather = allgather;
    args.window_bytes = 1 << 20;
    args.enter_timeout_ns = 1000; /* a wait behind an uncommitted task fails soon */
    return args;
}

/* Nothing may be under way when the buffers go: completes it, or ends the communicator. */
static void drain(void)
{
    for (int i = 0; i < 2; i++) {
        if (tw_comm_barrier(comms[i]) == TW_OK)
            continue;
        tw_comm_destroy(comms[i]);
        comms[i] = NULL;
    }
}

/* An error may have ended a communicator; a new one takes its place. */
static void refresh(void)
{
    for (int i = 0; i < 2; i++) {
        if (comms[i] != NULL && tw_comm_status(comms[i]) == TW_OK)
            continue;
        tw_comm_destroy(comms[i]);
        const tw_comm_args_t args = comm_args();
        require(tw_comm_create(&args, &comms[i]) == TW_OK);
    }
}

static void good_tiling(uint8_t *tiling)
{
    static const uint32_t kinds[6] = {TW_HCCL_CMD_ALLREDUCE, TW_HCCL_CMD_ALLGATHER, TW_HCCL_CMD_REDUCE_SCATTER,
                                      TW_HCCL_CMD_ALLTOALL,  TW_HCCL_CMD_ALLTOALLV, TW_HCCL_CMD_BATCH_WRITE};
    for (int i = 0; i < 6; i++) {
        tw_hccl_tiling_args_t args = TW_HCCL_TILING_ARGS_INIT;
        tw_hccl_init_tiling_t init;
        tw_hccl_cc_tiling_t cc;
        args.group_name = "g";
        args.op_type = kinds[i];
        require(tw_hccl_tiling(&args, &init, &cc) == TW_OK);
        memcpy(tiling, &init, sizeof init);
        memcpy(tiling + sizeof init + (size_t)i * sizeof cc, &cc, sizeof cc);
    }
}

static tw_hccl_t *new_object(uint8_t how)
{
    const tw_hccl_core_t core = {.type = how & 1 ? TW_HCCL_CORE_AIC : TW_HCCL_CORE_AIV,
                                 .block = how >> 1 & 1,
                                 .poster_type = (tw_hccl_core_type_t)((how >> 2 & 3) % 3)};
    tw_hccl_t *hccl = NULL;
    require(tw_hccl_create(&core, &hccl) == TW_OK);
    return hccl;
}

static void open_program(program_t *p)
{
    refresh();
    require(tw_hccl_contexts_create(comms, 2, p->contexts) == TW_OK);
    p->send = aligned_alloc(64, BUFFER_BYTES);
    p->recv = aligned_alloc(64, BUFFER_BYTES);
    require(p->send != NULL && p->recv != NULL);
    memset(p->send, 0x5a, BUFFER_BYTES);
    memset(p->recv, 0xa5, BUFFER_BYTES);
    for (int i = 0; i < 2; i++) {
        p->hccl[i] = new_object(0);
        p->tilings[i] = malloc(TILING_BYTES);
        require(p->tilings[i] != NULL);
        good_tiling(p->tilings[i]);
    }
}

static void close_program(program_t *p)
{
    for (int i = 0; i < 2; i++)
        tw_hccl_destroy(p->hccl[i]);
    tw_hccl_contexts_destroy(p->contexts, 2);
    drain();
    free(p->tilings[0]);
    free(p->tilings[1]);
    free(p->send);
    free(p->recv);
}

/* ---- Calls ------------------------------------------------------------------------------------ */

/* The sentence must be there for every refusal. */
static void judge(int result, bool must_fail)
{
    require(result >= -1 && result < 64);
    require(result >= 0 || tw_last_error()[0] != '\0');
    require(result == -1 || !must_fail);
}

typedef struct call {
    uint64_t count, stride;
    uint32_t type, op, repeat, flags;
} call_t;

static bool wrong(const call_t *c, bool reduces)
{
    const bool op_ok = c->op == TW_HCCL_SUM || c->op == TW_HCCL_MAX || c->op == TW_HCCL_MIN;
    return twi_dtype_bytes(c->type) == 0 || c->repeat < 1 || c->repeat > 255 || c->flags > 1 ||
           (reduces && (!op_ok || !twi_dtype_reduces(c->type)));
}

/* What the call must be refused for, or whether the buffers hold it; otherwise it is left out. */
static bool sensible(wide_t extent_bytes, size_t skew, bool is_wrong, bool *must_fail)
{
    *must_fail = is_wrong || extent_bytes > PTRDIFF_MAX;
    return *must_fail || extent_bytes + skew <= BUFFER_BYTES;
}

static uint32_t type_of(program_t *p)
{
    const uint8_t b = byte(p);
    return b < 250 ? b % 19 : (uint32_t)word(p);
}

static void call_uniform(program_t *p, tw_hccl_t *hccl, uint8_t kind)
{
    call_t c = {.count = number(p), .stride = number(p), .type = type_of(p)};
    c.op = byte(p) % 6;
    c.repeat = (uint32_t)number(p);
    c.flags = byte(p) % 3;
    const bool reduces = kind % 2 == 0;
    const size_t skew = byte(p) & 1; /* misaligned, for elements of more than a byte */
    const wide_t extent = (wide_t)c.count * c.repeat * twi_dtype_bytes(c.type);
    bool must_fail;
    if (!sensible(extent, skew, wrong(&c, reduces) || c.count == 0, &must_fail))
        return;
    must_fail = must_fail || (skew != 0 && twi_dtype_bytes(c.type) > 1);
    const uint8_t *send = p->send + skew;
    uint8_t *recv = p->recv;
    int h;
    if (kind == 0)
        h = tw_hccl_all_reduce(hccl, send, recv, c.count, c.type, c.op, c.repeat, c.flags);
    else if (kind == 1)
        h = tw_hccl_all_gather(hccl, send, recv, c.count, c.type, c.stride, c.repeat, c.flags);
    else if (kind == 2)
        h = tw_hccl_reduce_scatter(hccl, send, recv, c.count, c.type, c.op, c.stride, c.repeat, c.flags);
    else
        h = tw_hccl_alltoall(hccl, send, recv, c.count, c.type, c.stride, c.repeat, c.flags);
    judge(h, must_fail);
}

static void call_v(program_t *p, tw_hccl_t *hccl)
{
    const uint64_t sent = number(p), sent_at = number(p), received_at = number(p);
    const uint64_t received = byte(p) % 8 == 0 ? number(p) : sent;
    const call_t c = {.type = type_of(p), .repeat = byte(p), .flags = byte(p) % 3};
    const uint32_t recv_type = byte(p) % 8 == 0 ? type_of(p) : c.type;
    const uint8_t missing = byte(p) % 16;
    const size_t elem = twi_dtype_bytes(c.type);
    const wide_t from = (sent ? ((wide_t)sent * c.repeat + sent_at) : 0) * elem;
    const wide_t to = (received ? ((wide_t)received * c.repeat + received_at) : 0) * elem;
    const bool is_wrong = wrong(&c, false) || recv_type != c.type || missing < 4;
    bool must_fail;
    if (!sensible(from > to ? from : to, 0, is_wrong, &must_fail))
        return;
    judge(tw_hccl_alltoallv(hccl, p->send, missing == 0 ? NULL : &sent, missing == 1 ? NULL : &sent_at, c.type, p->recv,
                            missing == 2 ? NULL : &received, missing == 3 ? NULL : &received_at, recv_type, c.repeat,
                            c.flags),
          must_fail);
}

static void call_batch(program_t *p, tw_hccl_t *hccl)
{
    uint8_t *window = tw_hccl_window_in(hccl, 0);
    const size_t skip = byte(p);
    tw_hccl_batch_item_t item = {.count = number(p), .type = type_of(p), .remote_rank = byte(p) % 4 == 0 ? byte(p) : 0};
    item.local = byte(p) % 8 == 0 ? 0 : (uint64_t)(uintptr_t)(p->send + skip);
    item.remote = byte(p) % 4 == 0 ? number(p) : (uint64_t)(uintptr_t)window + number(p);
    const wide_t extent = (wide_t)item.count * twi_dtype_bytes(item.type);
    const bool far = item.remote < (uint64_t)(uintptr_t)window;
    const bool must_fail = window == NULL || item.local == 0 || item.remote_rank > 0 || far ||
                           twi_dtype_bytes(item.type) == 0 || extent > (wide_t)1 << 40;
    if (must_fail || extent + skip <= BUFFER_BYTES)
        judge(tw_hccl_batch_write(hccl, &item, 1, byte(p) % 2), must_fail);
}

/* A tiling struct of arbitrary contents; it stays for the calls that follow. */
static void damage_tiling(program_t *p, int which)
{
    const size_t at = word(p) % TILING_BYTES;
    const size_t n = 1 + byte(p) % 64;
    bytes(p, p->tilings[which] + at, n < TILING_BYTES - at ? n : TILING_BYTES - at);
}

static void register_tiling(program_t *p, int which)
{
    const size_t last = TILING_BYTES - sizeof(tw_hccl_cc_tiling_t);
    const uint8_t how = byte(p);
    const uint64_t any = how < 200 ? sizeof(tw_hccl_init_tiling_t) + how % 6 * sizeof(tw_hccl_cc_tiling_t) : number(p);
    if (any <= last || any > 1u << 20) /* between them lies memory that is not ours */
        judge(tw_hccl_set_cc_tiling_v2(p->hccl[which], any), any < sizeof(tw_hccl_init_tiling_t) || any > 1u << 20);
    if (how % 8 == 0)
        judge(tw_hccl_set_cc_tiling(p->hccl[which], p->tilings[which] + any % last), false);
}

/* ---- Argument structs ------------------------------------------------------------------------- */

static size_t struct_size(program_t *p, size_t known)
{
    switch (byte(p) & 3) {
    case 0:
        return known;
    case 1:
        return known + byte(p);
    case 2:
        return byte(p);
    default:
        return number(p);
    }
}

/* True if the size ends inside a pointer: then the struct has none, because half of one is no pointer. */
static bool cuts(size_t size)
{
    return size % sizeof(void *) != 0;
}

static void tail(program_t *p, uint8_t *args, size_t known)
{
    memset(args, 0, ARGS_BYTES);
    if (byte(p) & 1)
        args[known + word(p) % (ARGS_BYTES - known)] = byte(p);
}

static void text(program_t *p, char *out, size_t room)
{
    const size_t n = byte(p) % room;
    bytes(p, out, n);
    out[n] = '\0';
}

static void call_tiling(program_t *p)
{
    static _Alignas(16) uint8_t raw[ARGS_BYTES];
    char name[200];
    char algorithm[200];
    tail(p, raw, sizeof(tw_hccl_tiling_args_t));
    tw_hccl_tiling_args_t args = {.struct_size = struct_size(p, sizeof args)};
    text(p, name, sizeof name);
    text(p, algorithm, sizeof algorithm);
    args.op_type = (uint32_t)number(p);
    args.reduce_type = (uint32_t)number(p);
    args.skip_local_rank_copy = byte(p);
    args.skip_buffer_window_copy = byte(p);
    args.group_name = cuts(args.struct_size) || byte(p) % 8 == 0 ? NULL : name;
    args.alg_config = cuts(args.struct_size) || byte(p) % 8 == 0 ? NULL : algorithm;
    memcpy(raw, &args, sizeof args);
    tw_hccl_init_tiling_t init;
    tw_hccl_cc_tiling_t cc;
    const tw_status_t status = tw_hccl_tiling((const tw_hccl_tiling_args_t *)(const void *)raw, &init, &cc);
    require(status == TW_OK || (status == TW_ERR_ARGUMENT && tw_last_error()[0] != '\0'));
}

static void call_create(program_t *p)
{
    static _Alignas(16) uint8_t raw[ARGS_BYTES];
    char name[160];
    tail(p, raw, sizeof(tw_comm_args_t));
    tw_comm_args_t args = comm_args();
    text(p, name, sizeof name);
    args.struct_size = struct_size(p, sizeof args);
    args.rank = byte(p) % 4 == 0 ? (int)word(p) : 0;
    args.size = byte(p) % 4 == 0 ? (int)word(p) : 1;
    args.transport = (tw_transport_t)(byte(p) % 5 - 1);
    args.window_bytes = byte(p) % 4 == 0 ? number(p) : 1 << 20;
    args.timeout_ns = number(p);
    args.name = byte(p) % 2 ? name : NULL;
    if (cuts(args.struct_size)) {
        args.name = NULL;
        args.allgather = NULL;
    }
    if (args.size != 1 && args.rank >= 0 && args.rank < args.size)
        return; /* there are no peers */
    memcpy(raw, &args, sizeof args);
    tw_comm_t *comm = NULL;
    const tw_status_t status = tw_comm_create((const tw_comm_args_t *)(const void *)raw, &comm);
    require(status == TW_OK ? tw_comm_rank(comm) == 0 && tw_comm_size(comm) == 1 : comm == NULL);
    require(status == TW_OK || tw_last_error()[0] != '\0');
    tw_comm_destroy(comm);
}

/* ---- The program ------------------------------------------------------------------------------ */

static void step(program_t *p)
{
    const uint8_t code = byte(p);
    const int which = code >> 7;
    tw_hccl_t *hccl = p->hccl[which];
    switch (code & 15) {
    case 0:
        judge(tw_hccl_init_v2(hccl, p->contexts[which], p->tilings[which]), false);
        return;
    case 1:
        judge(tw_hccl_init(hccl, p->contexts[which], byte(p) & 1 ? p->tilings[which] : NULL), false);
        return;
    case 2:
        register_tiling(p, which);
        return;
    case 3:
        damage_tiling(p, which);
        return;
    case 4:
    case 5:
    case 6:
    case 7:
        call_uniform(p, hccl, (code & 15) - 4);
        return;
    case 8:
        call_v(p, hccl);
        return;
    case 9:
        call_batch(p, hccl);
        return;
    case 10:
        tw_hccl_commit(hccl, (tw_hccl_handle_t)byte(p));
        return;
    case 11:
        judge(tw_hccl_wait(hccl, (tw_hccl_handle_t)byte(p)), false);
        return;
    case 12:
        require(tw_hccl_query(hccl, (tw_hccl_handle_t)byte(p)) <= 255);
        return;
    case 13:
        judge(tw_hccl_inter_group_sync(hccl, (int8_t)byte(p), (tw_hccl_handle_t)byte(p)), false);
        return;
    case 14:
        (void)tw_hccl_finalize(hccl, byte(p) & 1);
        if (byte(p) & 1) {
            tw_hccl_destroy(hccl);
            p->hccl[which] = new_object(byte(p));
        }
        return;
    default:
        if (code & 16)
            call_tiling(p);
        else
            call_create(p);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    (void)unsetenv("RANK"); /* env:// finds nothing */
    program_t p = {.at = data, .end = data + size};
    open_program(&p);
    for (int i = 0; i < CALLS_MAX && p.at < p.end; i++)
        step(&p);
    close_program(&p);
    return 0;
}
