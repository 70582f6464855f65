/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_OPS_OP_H
#define TWI_OPS_OP_H
/*
 * Insides of the operators, shared by the files of this folder only.
 *
 * An operator is a set of queues of items. An item is a piece of work for one worker: a product of a
 * strip, a reduction, a copy. Items of a queue are taken in order, the first one as soon as nothing
 * that it needs is lacking; a worker takes from the first queue that has such an item. So nobody waits
 * while there is something to do, whatever the operator is. To add one: a row in ops.def and a file that
 * fills a twi_op_class_t.
 */
#include <stdatomic.h>

#include "base/lock.h"
#include "ops/board.h"
#include "ops/ops.h"

enum {
    TWI_STRIP_ROWS = 256, /* of a strip at most, if it is what ranks tell each other of */
    TWI_OPS_LINE = 64,
};

/* ---- Workers ----------------------------------------------------------------------------------- */

typedef struct twi_products twi_products_t;

/* What a worker of the team has to itself. */
typedef struct twi_op_worker {
    int index;
    twi_buffer_t memory;
    char *gemm;                   /* of twi_gemm_strip */
    char *panels;                 /* of strip packed_strip of `packed` */
    char *rows;                   /* mr rows of the left matrix, as they come */
    char *tiles[4];               /* mr * nr elements of 4 bytes each */
    const void **all_sources;     /* [2][size] */
    const void **sources;         /* one half of them */
    const char **bases;           /* [size] */
    twi_gemm_rows_t *others;      /* [size] y of ranks */
    twi_gemm_rows_t *also;        /* [2][size + 1], one half after the other */
    const twi_products_t *packed; /* NULL: no strip is packed */
    int64_t packed_strip;
} twi_op_worker_t;

/* ---- Queues ------------------------------------------------------------------------------------ */

/* What the callbacks of a queue are told of an item. */
typedef struct twi_item {
    int64_t number; /* in its queue */
    int peer;       /* of its queue */
} twi_item_t;

/*
 * True if the item cannot run because of something that `rank`, perhaps this one, has not done. Ranks are asked one
 * after the other: once it is false for a rank it must stay false.
 */
typedef bool twi_lacks_fn(twi_op_t *op, twi_item_t item, int rank);
typedef void twi_run_fn(twi_op_t *op, twi_item_t item, twi_op_worker_t *worker);

typedef struct twi_queue {
    _Alignas(TWI_LINE_PAIR) _Atomic int64_t next; /* first item that nobody has taken; relaxed: items are independent */
    _Atomic int64_t n;                            /* may grow while another queue has items; release, acquire */
    int peer;                                     /* the rank that its items are about, or -1 */
    bool optional;                                /* done for others: the call may end without it */
    _Atomic int lacked;  /* the rank that it waited for at the last look; relaxed, only a hint */
    twi_lacks_fn *lacks; /* NULL: items are always ready */
    twi_run_fn *run;
} twi_queue_t;

/* ---- Completion -------------------------------------------------------------------------------- */

/*
 * Units that workers finish in any order and that a word of the board counts in theirs. Workers store
 * done[u] under the lock, so whoever moves the word has seen what all of them wrote.
 */
typedef struct twi_units {
    _Atomic uint64_t *word;
    twi_lock_t lock;
    int64_t n;
    int64_t next;
    uint8_t *done; /* [n] */
} twi_units_t;

/* Reads still outstanding in each round; `taken` is the first round whose count is not zero. */
typedef struct twi_reads {
    twi_lock_t lock;
    int64_t n_rounds;
    int64_t next;  /* the first round with reads left */
    int64_t *left; /* [n_rounds] */
} twi_reads_t;

/* ---- Operators --------------------------------------------------------------------------------- */

typedef struct twi_op_class {
    /* Chooses the schedule, fills plan, queues, units and reads, and op->state, all from op->memory. Local. */
    tw_status_t (*create)(twi_op_t *op);
    void (*start)(twi_op_t *op); /* before a run: all of twi_op_alloc_run is gone; NULL: nothing to do */
    void (*explain)(const twi_op_t *op, char *text, size_t bytes);
} twi_op_class_t;

#define TW_OP(NAME, name) extern const twi_op_class_t twi_op_##name;
#include "ops/ops.def"
#undef TW_OP

struct twi_op {
    twi_ops_t *ops;
    const twi_op_class_t *class;
    twi_op_problem_t problem;
    twi_op_memory_t *memory;
    twi_transport_t *transport;
    int rank, size;
    twi_gemm_plan_t plan;
    twi_gemm_plan_t shared_plan; /* of the shared expert, as the next one */
    twi_products_t *shared;      /* NULL: there is none */
    void *state;                 /* of the class */

    int64_t n_rounds;         /* of this rank's slots */
    const size_t *slot_bytes; /* [n_rounds]; NULL: all have slot_bytes_each */
    size_t slot_bytes_each;
    const void *lists; /* what the first slot begins with, before `entered` is stored; NULL: nothing */
    size_t lists_bytes;
    twi_call_entry_t entry;

    twi_queue_t *queues; /* in the order in which they are looked at */
    int n_queues;
    twi_units_t sent, result;
    twi_reads_t reads;

    uint64_t call;
    twi_patience_t patience;
    bool has_optional;      /* queues; set by the class */
    uint64_t work_ns;       /* that its team was at work in this call, if it has such queues */
    uint64_t help_until_ns; /* the time up to which it takes optional items when nothing else is left; 0: not set yet */
    bool entered;
    bool waits_to_end;       /* the caller does not come back before the call has ended, however long that takes */
    bool lends_rows;         /* peers read our left matrix: the call ends when they have */
    bool alone;              /* so small that the caller does it without its team */
    _Atomic uint8_t *agreed; /* [size] */
    _Atomic int diverged;    /* 1 + rank whose call differs */
    _Atomic int64_t opened;  /* rounds whose slot is ours to write */
    _Atomic int64_t budget;  /* items that may still be taken */
    _Atomic int trouble;     /* tw_status_t of a worker, with its sentence */
    char trouble_text[TWI_ERROR_MAX];
};

static inline const char *twi_op_name(const twi_op_t *op)
{
    return twi_op_kind_name((uint32_t)op->problem.kind);
}

typedef struct twi_slot_use {
    uint64_t until; /* free when every rank's taken has reached it */
    size_t at, bytes;
} twi_slot_use_t;

struct twi_ops {
    twi_engine_t *engine;
    twi_transport_t *transport;
    twi_team_t *team;
    int n_workers;
    twi_op_worker_t *workers;
    uint64_t n_calls;
    twi_op_t *running;
    /* Slots of this rank (ops_slots.c). */
    twi_lock_t slots_lock;
    twi_slot_use_t live[TWI_SLOTS_LIVE];
    int n_live;
    size_t slots_bytes;    /* in all */
    size_t slots_reserved; /* backed with memory so far */
    /* Traces (ops_trace.c). */
    tw_trace_event_t *events;
    size_t n_events;
    _Atomic size_t traced;
};

/* ---- What classes use -------------------------------------------------------------------------- */

/* ops_flow.c: whether units of a rank are there, after a look at whether it calls what we call. */
bool twi_op_agrees(twi_op_t *op, int rank);
bool twi_op_has_sent(twi_op_t *op, int rank, int64_t units);
bool twi_op_has_result(twi_op_t *op, int rank, int64_t units);
/* TW_IN_PROGRESS when the clock passes until_ns; 0: a piece of work, or a look at the peers; UINT64_MAX: to the end. */
tw_status_t twi_op_run_all(twi_op_t *op, uint64_t until_ns);
void twi_op_trouble(twi_op_t *op, tw_status_t status);

/* For an item that found nothing to do: it does not count in what is done at a time. */
static inline void twi_op_did_nothing(twi_op_t *op)
{
    (void)atomic_fetch_add_explicit(&op->budget, 1, memory_order_relaxed);
}

/*
 * ops_memory.c: zeroed, for as long as the operator lives, or for one run and by one thread at a time. NULL, and the
 * sentence of the error has been made: no memory.
 */
void *twi_op_alloc(const twi_op_t *op, size_t n, size_t item_bytes);
void *twi_op_alloc_run(const twi_op_t *op, size_t n, size_t item_bytes);

/* ops_units.c */
tw_status_t twi_units_create(twi_op_t *op, twi_units_t *units, _Atomic uint64_t *word, int64_t n);
/* Units unit..unit+n-1 are finished. */
void twi_units_finish(twi_op_t *op, twi_units_t *units, int64_t unit, int64_t n);
/* `left` is for n_rounds counts; NULL: there was no memory. */
tw_status_t twi_reads_create(twi_reads_t *reads, int64_t *left, int64_t n_rounds);
/* In every run, once what is to be read has been counted. */
void twi_reads_begin(twi_op_t *op);
void twi_reads_finish(twi_op_t *op, int64_t round);

/* ops_slots.c: TW_ERR_NO_MEMORY if a slot of `bytes` never fits. */
tw_status_t twi_slot_fits(const twi_op_t *op, size_t bytes);
/* Opens the slot of a round of ours if it can; whether it is `rank` that keeps it from being open. */
bool twi_slot_open(twi_op_t *op, int64_t round);
bool twi_slot_lacks(twi_op_t *op, int64_t round, int rank);

/* How far a rank comes after ours: 0 for ourselves, size - 1 for the rank before us. */
static inline int twi_op_distance(const twi_op_t *op, int rank)
{
    return (rank - op->rank + op->size) % op->size;
}

static inline char *twi_op_slot(const twi_op_t *op, int rank, int64_t round)
{
    return twi_board_slot(op->transport, rank, op->call, round);
}

/* ops.c: memory for n queues, all empty, and what one of them is to do. */
tw_status_t twi_op_queues(twi_op_t *op, int n);
void twi_op_queue(twi_queue_t *queue, int peer, int64_t n, twi_lacks_fn *lacks, twi_run_fn *run);
/* Memory of the workers: grows to what the plans of the operator need. */
tw_status_t twi_op_worker_memory(twi_op_t *op);

/* ops_trace.c: 0 when nothing is traced. */
uint64_t twi_trace_begin(const twi_op_t *op);
void twi_trace_end(twi_op_t *op, uint64_t begin_ns, const char *what, const twi_op_worker_t *worker, int peer,
                   const twi_gemm_strip_t *strip);

#endif
