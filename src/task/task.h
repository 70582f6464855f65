/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_TASK_TASK_H
#define TWI_TASK_TASK_H
/*
 * The task engine: collectives that are posted, committed round by round, and waited for.
 *
 * All ranks of a communicator post the same tasks in the same order; a task has `repeat` rounds, and
 * rounds are numbered through over all tasks: the epoch. Each rank publishes two epochs: `ready`, the
 * rounds whose contribution the peers may use, and `done`, the rounds it has completed. A round can
 * be completed as soon as it is ready on all ranks, and then by anybody who waits; that is why a rank
 * that has committed need not call in again (task_share.c).
 *
 * Threads: every function takes the engine's lock. Only one thread of a rank drives it at a time.
 */
#include <stdatomic.h>
#include <stdbool.h>

#include "base/sizes.h"
#include "transport/transport.h"

#define TWI_TASK_RING 128u /* task entries a rank keeps visible: two sessions of at most 64 tasks */
#define TWI_TASK_STEP_BITS 20u
#define TWI_EPOCH(round, step) ((uint64_t)(round) << TWI_TASK_STEP_BITS | (uint64_t)(step))

/* ---- What peers see of a task ---- */

typedef struct twi_entry {
    uint64_t hash;        /* of everything that all ranks must agree on */
    uint64_t send;        /* address in the owner's process */
    uint64_t recv;        /* address in the owner's process */
    uint64_t send_window; /* 1 + offset of send in the owner's window; 0: private memory */
    uint64_t recv_window; /* 1 + offset of recv in the owner's window; 0: private memory */
    uint64_t count;       /* elements of a block */
    uint64_t stride;      /* elements between blocks; never 0 */
    uint64_t number;      /* of the collective; every rank counts alike */
    uint64_t first;       /* epoch of its first round */
    uint32_t dtype;
    uint32_t op;
    uint32_t command; /* tw_hccl_cmd_t */
    uint32_t repeat;
    _Atomic uint32_t cancelled_from; /* rounds from this one on will never be committed; repeat: none */
    uint8_t in_place;                /* send and recv overlap */
    uint8_t in_turn;                 /* recv overlaps that of an earlier round: only its owner's order is right */
    uint8_t skip_own;                /* leave the own block alone */
} twi_entry_t;

_Static_assert(sizeof(twi_entry_t) <= TWI_LINE_PAIR, "an entry is two cache lines");

/* Per-rank arrays of alltoallv, one set for each entry of the ring. */
enum { TWI_SEND_COUNTS, TWI_SEND_DISPLS, TWI_RECV_COUNTS, TWI_RECV_DISPLS, TWI_N_ARRAYS };

typedef struct twi_board {
    /* Owner writes both (release), peers read (acquire). One line: they change together. */
    _Alignas(TWI_LINE_PAIR) _Atomic uint64_t ready; /* TWI_EPOCH: first round and step not yet published */
    _Atomic uint64_t done;                          /* TWI_EPOCH: first round and step not yet completed */
    /* Claimed chunks of this rank's share of the rounds; anybody may take the next one (task_share.c). */
    _Alignas(TWI_LINE_PAIR) _Atomic uint64_t claimed;
    _Alignas(TWI_LINE_PAIR) _Atomic uint64_t finished; /* fetch_add (release) by whoever ran a chunk */
    _Alignas(TWI_LINE_PAIR) _Atomic uint64_t doing;    /* owner: 1 + rank whose share it works on, 0: nothing */
    _Atomic uint64_t touching; /* threads of the owner that use buffers of peers for an operator */
    _Alignas(TWI_LINE_PAIR) twi_entry_t entries[TWI_TASK_RING];
} twi_board_t;

/* ---- Collectives, as the engine sees them (src/coll) ---- */

typedef struct twi_engine twi_engine_t;

/* One round of a task, with what it takes to find the entries of all ranks. */
typedef struct twi_round {
    twi_engine_t *engine;
    const struct twi_coll *coll;
    twi_window_t *const *windows;
    size_t entry;  /* offset of the task's entry in every window */
    size_t arrays; /* offset of its arrays in every window */
    int rank;      /* ours */
    int size;
    uint32_t index; /* round of the task */
    uint32_t elem_bytes;
    uint64_t pitch; /* elements of each block that one staging step carries; 0: none fit */
} twi_round_t;

static inline const twi_entry_t *twi_round_entry(const twi_round_t *round, int rank)
{
    return (const twi_entry_t *)(const void *)(round->windows[rank]->base + round->entry);
}

static inline const uint64_t *twi_round_array(const twi_round_t *round, int rank, int which)
{
    return (const uint64_t *)(const void *)(round->windows[rank]->base + round->arrays) + which * round->size;
}

/* A block that goes from one rank to another, as its sender sees it. */
typedef struct twi_block {
    uint64_t n;      /* elements */
    uint64_t offset; /* elements from the start of the send buffer */
} twi_block_t;

typedef struct twi_coll {
    uint32_t command; /* tw_hccl_cmd_t */
    bool personal;    /* every destination gets a block of its own; otherwise all get the same */
    /* What src sends to dst; looks at src's entry only, so that src can ask before dst has posted. */
    twi_block_t (*sent)(const twi_round_t *round, int src, int dst);
    /* Where dst stores it, in elements from the start of its recv buffer; looks at dst's entry only. */
    uint64_t (*stored)(const twi_round_t *round, int src, int dst);
    /* Shared execution: `home`'s share of the round, in chunks that any rank may run. */
    uint64_t (*n_chunks)(const twi_round_t *round, int home);
    tw_status_t (*run_chunk)(const twi_round_t *round, int home, uint64_t chunk);
    /* Staged execution: elements from `first` on of each block, as many as a step carries, contributions at
     * staged[src] (NULL: src has none in this step). Writes only this rank's recv. */
    void (*consume)(const twi_round_t *round, const uint8_t *const *staged, uint64_t first);
} twi_coll_t;

/* What colls.def says of a tw_hccl_cmd_t: "all_reduce", and whether it takes an op; of others "unknown task", no. */
const char *twi_command_name(uint32_t command);
bool twi_command_reduces(uint32_t command);

/*
 * Memory of any rank, for run_chunk. load: a pointer to `bytes` bytes at `offset` of the rank's send
 * buffer, through `scratch` (of that size) if the memory is not mapped here. target: where loads and
 * stores reach its recv buffer, or NULL; then store puts bytes there.
 */
tw_status_t twi_round_load(const twi_round_t *round, int rank, uint64_t offset, size_t bytes, void *scratch,
                           const void **out);
void *twi_round_target(const twi_round_t *round, int rank, uint64_t offset);
tw_status_t twi_round_store(const twi_round_t *round, int rank, uint64_t offset, const void *src, size_t bytes);
/* The engine's scratch memory, TWI_SCRATCH_BYTES, only for the thread that runs a chunk. */
#define TWI_SCRATCH_BYTES ((size_t)1 << 20)
uint8_t *twi_round_scratch(const twi_round_t *round);
/* Whether results of `bytes` should bypass the cache. */
bool twi_round_streams(const twi_round_t *round, uint64_t bytes);

/* ---- The engine ---- */

typedef struct twi_task_args {
    const twi_coll_t *coll;
    const void *send;
    void *recv;
    size_t send_bytes; /* extent of the buffers over all rounds, for windows and overlap */
    size_t recv_bytes;
    uint64_t count;
    uint64_t stride;
    uint32_t dtype;
    uint32_t elem_bytes;
    uint32_t op;
    uint32_t repeat;
    uint32_t commit;
    bool recv_blocks; /* recv holds a block for each rank, `stride` apart */
    bool skip_own;
    const uint64_t *arrays[TWI_N_ARRAYS]; /* NULL but for alltoallv */
} twi_task_args_t;

/* Sizes that every rank must plan its window with. */
size_t twi_engine_board_bytes(int size);
size_t twi_engine_stage_bytes(void);

tw_status_t twi_engine_create(twi_transport_t *transport, twi_engine_t **engine_out);
/* NULL is fine. Tells the peers that we left; the transport is closed afterwards. */
void twi_engine_destroy(twi_engine_t *engine);

/* Registers a task and commits args->commit rounds of it. Never blocks. Numbers count up from 0. */
tw_status_t twi_engine_post(twi_engine_t *engine, const twi_task_args_t *args, uint64_t *number_out);
/*
 * A task that only this rank runs, in its turn, e.g. one-sided writes. `run` may be called from any of
 * the engine's functions. `arg` is from malloc and freed by the engine, once this call succeeded.
 */
typedef tw_status_t (*twi_local_fn)(void *arg);
tw_status_t twi_engine_post_local(twi_engine_t *engine, twi_local_fn run, void *arg, uint64_t *number_out);
/* Tasks posted later are published only when task `number` of `source` is done. */
tw_status_t twi_engine_post_gate(twi_engine_t *engine, twi_engine_t *source, uint64_t number);
/* Whether a gate is still shut, and forgetting all gates: the sources may go away afterwards. */
bool twi_engine_gated(twi_engine_t *engine);
void twi_engine_forget_gates(twi_engine_t *engine);

/* One more round may run; surplus calls are ignored. Never blocks. */
void twi_engine_commit(twi_engine_t *engine, uint64_t number, uint32_t rounds);
/* Gives up the rounds of a task that are not committed yet. */
void twi_engine_cancel(twi_engine_t *engine, uint64_t number);
/* Until `rounds` rounds of the task are done. TW_ERR_PEER_LEFT for a round that some rank cancelled. */
tw_status_t twi_engine_wait(twi_engine_t *engine, uint64_t number, uint32_t rounds);
/* How many rounds of the task are done; does what can be done without waiting. Negative: a tw_status_t. */
int64_t twi_engine_query(twi_engine_t *engine, uint64_t number);
/* The status that ended the engine, or TW_OK; sets the calling thread's sentence. */
tw_status_t twi_engine_health(twi_engine_t *engine);
/* Ends the engine with the calling thread's last error: every later call fails with it. */
void twi_engine_lose(twi_engine_t *engine, tw_status_t status);

/*
 * Around using buffers of peers: after the first one those of ranks whose health is still good may be read and
 * written; a rank that gives up waits for the second one. Any thread.
 */
void twi_engine_touch_begin(twi_engine_t *engine);
void twi_engine_touch_end(twi_engine_t *engine);

#endif
