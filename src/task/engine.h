/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_TASK_ENGINE_H
#define TWI_TASK_ENGINE_H
/* Insides of the task engine, shared by the files of this folder only. */
#include "base/lock.h"
#include "task/task.h"

#define TWI_SLOTS 8u /* staging slots of a rank, a power of two */

/* A staging slot. Pairs: tag is stored (release) after the payload, read (acquire) before it. */
typedef struct twi_slot {
    _Atomic uint64_t tag; /* 1 + TWI_EPOCH of the step it holds; 0: none yet */
    uint64_t hash;        /* of the task, so that an agreeing round needs no look at the entry */
    uint8_t payload[];
} twi_slot_t;

/* A task as its own rank sees it. */
typedef struct twi_task {
    const twi_coll_t *coll; /* NULL: a local task */
    uint64_t number;
    uint64_t sequence;       /* among the collectives: the same on all ranks, which may have local tasks between */
    uint64_t first;          /* epoch of its first round */
    uint32_t repeat;         /* 0 for a local task */
    uint32_t committed;      /* rounds that the caller allowed */
    uint32_t cancelled_from; /* rounds from this one on ended without a result, because of `canceller` */
    int canceller;
    uint32_t elem_bytes;
    uint64_t pitch;      /* see twi_round_t */
    uint64_t steps;      /* how many we stage in each round */
    bool agreed;         /* the peers' entries have been compared with ours */
    const uint8_t *recv; /* to find tasks that write to the same memory */
    size_t recv_bytes;
    size_t recv_stride; /* bytes between the blocks of recv; 0: one block */
    size_t recv_block;  /* bytes of a block, over all rounds */
    twi_local_fn run;
    void *arg; /* from malloc, ours */
    tw_status_t local_status;
    bool local_done;
} twi_task_t;

/* Tasks from number `before` on are published only when task `number` of `source` is done. */
typedef struct twi_gate {
    twi_engine_t *source;
    uint64_t number;
    uint64_t before;
} twi_gate_t;

#define TWI_GATES_MAX 64

struct twi_engine {
    twi_transport_t *transport;
    twi_lock_t lock;
    int commit_waiters;
    _Atomic uint32_t n_commits; /* a futex: changes when this rank commits or cancels something */
    int rank;
    int size;
    tw_status_t health; /* of this engine; the sentence is kept for later callers */
    char reason[TWI_ERROR_MAX];

    twi_task_t tasks[TWI_TASK_RING];
    uint64_t n_tasks;  /* posted so far */
    uint64_t n_colls;  /* collectives among them */
    uint64_t n_rounds; /* rounds of all posted tasks */
    twi_gate_t gates[TWI_GATES_MAX];
    uint32_t n_gates;
    uint32_t n_gates_passed;
    uint64_t in_turn_until; /* rounds below this belong to tasks with in_turn: peers watch our `done` */

    uint64_t publish_task; /* first task that is not fully published */
    uint64_t ready_round;  /* first round that is not fully published */
    uint64_t ready_step;   /* first step of it that is not published */

    uint64_t done_task;          /* first task that is not complete */
    _Atomic uint64_t tasks_done; /* done_task, for other engines that wait at a gate (release, acquire) */
    uint64_t done_round;         /* first round that is not complete */
    uint64_t done_step;          /* first step of it that is not complete */

    /* Staging slots: own ring position, and where each peer's next staged step will be. */
    size_t slot_bytes; /* payload */
    size_t slot_pitch;
    bool must_stage; /* peers cannot reach our memory */
    bool stage_reserved;
    uint64_t staged;              /* steps staged so far */
    uint64_t own_tags[TWI_SLOTS]; /* what our slots hold, without a look at lines that peers read */
    uint64_t done_floor;          /* every rank's `done` was at least this when last seen */
    uint64_t *peer_staged;        /* [size] */
    const uint8_t **sources;      /* [size], scratch of one step */

    /* Shared execution: chunks of each rank's share up to and including the current round. Atomic
     * (relaxed) because a waiting thread reads them without the lock. */
    bool sharing;                /* chunk_end counts the current round already */
    bool look_at_ready;          /* the slots alone did not settle the current round */
    _Atomic uint64_t *chunk_end; /* [size] */
    uint8_t *scratch;
    size_t stream_bytes;
};

static inline twi_board_t *twi_engine_board(const twi_engine_t *e, int rank)
{
    return (twi_board_t *)(void *)twi_transport_at(e->transport, rank, e->transport->layout.board);
}

static inline twi_task_t *twi_engine_task(twi_engine_t *e, uint64_t number)
{
    return &e->tasks[number % TWI_TASK_RING];
}

static inline twi_round_t twi_engine_round(twi_engine_t *e, const twi_task_t *task, uint64_t round)
{
    const size_t place = (size_t)(task->sequence % TWI_TASK_RING);
    const size_t board = e->transport->layout.board;
    return (twi_round_t){
        .engine = e,
        .coll = task->coll,
        .windows = e->transport->windows,
        .entry = board + offsetof(twi_board_t, entries) + place * sizeof(twi_entry_t),
        .arrays = board + sizeof(twi_board_t) + place * TWI_N_ARRAYS * (size_t)e->size * sizeof(uint64_t),
        .rank = e->rank,
        .size = e->size,
        .index = (uint32_t)(round - task->first),
        .elem_bytes = task->elem_bytes,
        .pitch = task->pitch,
    };
}

/* task_stage.c */
/* Publishes what is committed: stages contributions and advances `ready`. True if it moved. */
bool twi_engine_publish(twi_engine_t *engine);
/* Elements of each block that one staged step carries. */
uint64_t twi_stage_pitch(const twi_engine_t *engine, const twi_task_args_t *args);
/* Steps that `rank` stages in this round (0: nothing to send). */
uint64_t twi_stage_steps(const twi_round_t *round, int rank);
/* The slot in which `rank` staged this step, or NULL if it did not. */
twi_slot_t *twi_stage_find(twi_engine_t *engine, int rank, uint64_t tag);
/* Makes the next slot ready to be written. */
void twi_stage_prefetch(const twi_engine_t *engine);
tw_status_t twi_stage_init(twi_engine_t *engine);
uint64_t twi_stage_done_floor(const twi_engine_t *engine);
/* Whether every rank's `done` has reached an epoch; looks at the peers only if what was seen last does not suffice. */
bool twi_stage_all_done(twi_engine_t *engine, uint64_t epoch);
bool twi_stage_holds_slot(const twi_engine_t *engine, uint64_t staged, int rank);
bool twi_stage_slot_free(const twi_engine_t *engine, uint64_t staged);
/* The gate that keeps a task from being published, or NULL. */
const twi_gate_t *twi_engine_gate(twi_engine_t *engine, uint64_t number);

/* task_agree.c: TW_ERR_DIVERGED with a sentence that says how the calls differ. */
tw_status_t twi_round_agree(const twi_round_t *round);
uint64_t twi_entry_hash(const twi_entry_t *entry);

/*
 * task_round.c: completes the next round if it can. Otherwise TW_IN_PROGRESS, and `need_out` says
 * what is missing.
 */
typedef enum twi_need {
    TWI_NEED_COMMIT,   /* a commit of this rank */
    TWI_NEED_GATE,     /* a task of another group */
    TWI_NEED_PEERS,    /* contributions of peers */
    TWI_NEED_SLOTS,    /* peers that use up staged contributions of ours */
    TWI_NEED_FINISHED, /* chunks that peers have claimed */
    TWI_NEED_TURN,     /* peers that have to complete their earlier rounds themselves */
} twi_need_t;

tw_status_t twi_engine_complete_round(twi_engine_t *engine, twi_need_t *need_out);
/* What the two ways to complete a round have in common: the end of it, good and bad, and passing over slots. */
tw_status_t twi_engine_round_done(twi_engine_t *engine);
tw_status_t twi_engine_failed(twi_engine_t *engine, tw_status_t status);
void twi_engine_pass_staged(twi_engine_t *engine);

/* task_share.c: twi_engine_complete_round for a round whose buffers all ranks can reach. */
tw_status_t twi_share_complete(twi_engine_t *engine, const twi_round_t *round, twi_need_t *need_out);
/* Whether every chunk of every rank's share has been run. Needs no lock. */
bool twi_share_all_finished(const twi_engine_t *engine);
/* Whether what `rank` has to complete itself, before this round may be shared, is done. */
bool twi_share_in_turn(const twi_round_t *round, int rank, uint64_t epoch);

/* Looks for the peers' contributions to the next round for about a microsecond, or not at all if not `may_wait`. */
void twi_engine_look_briefly(twi_engine_t *engine, bool may_wait);

/* task_wait.c: waits, without the lock, for what the round at hand needs. */
typedef struct twi_await {
    const char *name; /* of the collective */
    uint64_t number;  /* its sequence number, which all ranks share */
    uint32_t index;
    uint64_t epoch;  /* done of this rank when it began to wait */
    uint64_t ready;  /* what peers must publish */
    uint64_t staged; /* slot of ours that must become free to go on publishing; UINT64_MAX: none */
    twi_round_t round;
} twi_await_t;

tw_status_t twi_engine_await(twi_engine_t *engine, twi_need_t need, const twi_await_t *at);

void twi_engine_drain(twi_engine_t *engine);

/* task_engine.c: twi_engine_lose, with the lock. */
void twi_engine_poison(twi_engine_t *engine, tw_status_t status);

static inline uint64_t twi_load(const _Atomic uint64_t *p)
{
    return atomic_load_explicit(p, memory_order_acquire);
}

static inline void twi_publish(_Atomic uint64_t *p, uint64_t value)
{
    atomic_store_explicit(p, value, memory_order_release);
}

#endif
