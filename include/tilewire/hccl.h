/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TILEWIRE_HCCL_H
#define TILEWIRE_HCCL_H
/*
 * The kernel-side task API: collectives that are prepared, committed and waited for.
 *
 * A kernel runs as several cores (threads) of a rank. Each core has a tw_hccl_t of its own; all are
 * bound to the rank's context of a communicator. One core, the poster, registers the tasks; every
 * core may wait for them. The life of a task:
 *
 *     prepare (tw_hccl_all_reduce, ...) -> handle     parameters are registered, nothing moves
 *     tw_hccl_commit(handle)   x repeat               the input of one more round is ready
 *     tw_hccl_wait(handle)     x repeat               one more round is done
 *     tw_hccl_finalize                                no more tasks
 *
 * Tasks run in the order of their preparation. From Commit to the return of the matching Wait both
 * buffers of the round belong to the library. Commit never blocks, and once every rank has committed
 * a round, any rank that waits completes it for all: nobody needs to call in again (docs/HCCL.md, "Who must
 * call in", has the four exceptions).
 *
 * Return values are those of the original API: handles are >= 0 and -1 on failure, functions return
 * 0 or -1. tw_last_error() has the reason. Only Wait and Finalize block, and tw_hccl_contexts_destroy where a
 * session was not finalized. One thread at a time uses a tw_hccl_t, its core's; the objects of a context may be
 * used at the same time. Everything here is since 0.1.
 */
#include <tilewire/tilewire.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int8_t tw_hccl_handle_t;
#define TW_HCCL_INVALID ((tw_hccl_handle_t)-1)
#define TW_HCCL_SUCCESS 0
#define TW_HCCL_FAILED (-1)
#define TW_HCCL_MAX_TASKS 63 /**< Prepare calls from InitV2 to Finalize, over all objects of a rank */
#define TW_HCCL_MAX_RANKS_ALLTOALLV 256

/** Element types; the values are those of HcclDataType. 13 and 18.. are reserved. */
typedef enum tw_hccl_type {
    TW_HCCL_INT8 = 0,
    TW_HCCL_INT16 = 1,
    TW_HCCL_INT32 = 2,
    TW_HCCL_FP16 = 3,
    TW_HCCL_FP32 = 4,
    TW_HCCL_INT64 = 5,
    TW_HCCL_UINT64 = 6,
    TW_HCCL_UINT8 = 7,
    TW_HCCL_UINT16 = 8,
    TW_HCCL_UINT32 = 9,
    TW_HCCL_FP64 = 10,
    TW_HCCL_BFP16 = 11,
    TW_HCCL_INT128 = 12,
    TW_HCCL_HIF8 = 14,
    TW_HCCL_FP8E4M3 = 15,
    TW_HCCL_FP8E5M2 = 16,
    TW_HCCL_FP8E8M0 = 17,
    TW_HCCL_TYPE_RESERVED = 18,
} tw_hccl_type_t;

/** Reductions work on INT8, INT16, INT32, FP16, BFP16 and FP32. PROD is defined but refused. */
typedef enum tw_hccl_reduce {
    TW_HCCL_SUM = 0,
    TW_HCCL_PROD = 1,
    TW_HCCL_MAX = 2, /**< NaN wins; -0 is below +0 */
    TW_HCCL_MIN = 3,
    TW_HCCL_REDUCE_RESERVED = 4,
} tw_hccl_reduce_t;

/** Kinds of task; the values are those of HcclCMDType. */
typedef enum tw_hccl_cmd {
    TW_HCCL_CMD_INVALID = 0,
    TW_HCCL_CMD_ALLREDUCE = 2,
    TW_HCCL_CMD_ALLGATHER = 6,
    TW_HCCL_CMD_REDUCE_SCATTER = 7,
    TW_HCCL_CMD_ALLTOALLV = 8,
    TW_HCCL_CMD_ALLTOALL = 10,
    TW_HCCL_CMD_BATCH_WRITE = 18,
} tw_hccl_cmd_t;

typedef enum tw_hccl_core_type {
    TW_HCCL_CORE_DEFAULT = 0, /**< as `poster`: whichever type prepares first */
    TW_HCCL_CORE_AIV = 1,
    TW_HCCL_CORE_AIC = 2,
} tw_hccl_core_type_t;

/** Which core an object belongs to, and which core posts. Zero poster_type: no `config` was given. */
typedef struct tw_hccl_core {
    tw_hccl_core_type_t type; /**< this core: AIV or AIC */
    uint32_t block;           /**< this core's block id */
    tw_hccl_core_type_t poster_type;
    uint32_t poster_block;
} tw_hccl_core_t;

/* ---- Tiling: filled on the host, read by InitV2 and SetCcTilingV2 ----------------------------- */

/** Opaque; the first member of a kernel's tiling struct. */
typedef struct tw_hccl_init_tiling {
    uint64_t opaque[8];
} tw_hccl_init_tiling_t;

/** Opaque; one for each kind of collective the kernel uses. */
typedef struct tw_hccl_cc_tiling {
    uint64_t opaque[35];
} tw_hccl_cc_tiling_t;

typedef struct tw_hccl_tiling_args {
    size_t struct_size;
    const char *group_name; /**< at most 127 bytes; the context's group counts, a different name is logged */
    uint32_t op_type;       /**< a tw_hccl_cmd_t */
    const char *alg_config; /**< at most 127 bytes; no effect here */
    uint32_t reduce_type;   /**< below TW_HCCL_REDUCE_RESERVED; the prepare call says which, no effect here */
    uint8_t dst_type;       /**< no effect here, as the next two */
    uint8_t src_type;
    uint8_t step_size;
    uint8_t skip_local_rank_copy;    /**< 0 or 1: AllGather and AlltoAll leave the own block alone */
    uint8_t skip_buffer_window_copy; /**< 0, 1, 2; no effect here */
    uint8_t debug_mode;              /**< no effect here */
    uint16_t queue_num;              /**< queues of BatchWrite; 0: 1 */
    uint16_t comm_block_num;         /**< no effect here, as the next one */
    uint8_t comm_engine;
} tw_hccl_tiling_args_t;

#define TW_HCCL_TILING_ARGS_INIT                                                   \
    {                                                                              \
        sizeof(tw_hccl_tiling_args_t), NULL, 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
    }

/** Fills the opaque structs from the arguments; either output may be NULL. Local, any thread. */
TW_API TW_CHECKED tw_status_t tw_hccl_tiling(const tw_hccl_tiling_args_t *args, tw_hccl_init_tiling_t *init_out,
                                             tw_hccl_cc_tiling_t *cc_out);

/* ---- Contexts: what a kernel gets from its host ----------------------------------------------- */

typedef struct tw_hccl_context tw_hccl_context_t;

/**
 * Makes the contexts of one kernel launch on this rank, one for each communicator ("group") that the
 * kernel uses; the index in the array is the group id of InterHcclGroupSync. `contexts_out` has room for
 * n_groups (1..127) of them, which are the caller's. Local.
 */
TW_API TW_CHECKED tw_status_t tw_hccl_contexts_create(tw_comm_t *const *groups, uint32_t n_groups,
                                                      tw_hccl_context_t **contexts_out);
/** Destroys all contexts of a launch with one call, before their communicators; finalizes an open session. */
TW_API void tw_hccl_contexts_destroy(tw_hccl_context_t **contexts, uint32_t n_groups);

/* ---- One object a core ------------------------------------------------------------------------ */

typedef struct tw_hccl tw_hccl_t;

/** Makes the object of a core. It is the caller's; free it with tw_hccl_destroy, before the contexts. */
TW_API TW_CHECKED tw_status_t tw_hccl_create(const tw_hccl_core_t *core, tw_hccl_t **hccl_out);
TW_API void tw_hccl_destroy(tw_hccl_t *hccl); /**< NULL is fine */

/** Binds the object to a context and to the tiling struct that starts at `init_tiling`. Once. */
TW_API int32_t tw_hccl_init_v2(tw_hccl_t *hccl, tw_hccl_context_t *context, const void *init_tiling);
/** Registers the tw_hccl_cc_tiling_t at byte `offset` of the tiling struct for its kind of task. */
TW_API int32_t tw_hccl_set_cc_tiling_v2(tw_hccl_t *hccl, uint64_t offset);
/** The older pair. Without init_tiling every kind of task may be prepared at once. */
TW_API int32_t tw_hccl_init(tw_hccl_t *hccl, tw_hccl_context_t *context, const void *init_tiling);
TW_API int32_t tw_hccl_set_cc_tiling(tw_hccl_t *hccl, const void *cc_tiling);

/** Flags of the prepare calls. */
enum { TW_HCCL_COMMIT = 1 /**< commit all rounds at once */ };

/*
 * Prepare. Counts and strides are in elements. With repeat > 1, round i works on buffers that start
 * i * count elements further; blocks for different ranks lie `stride` elements apart (0: count).
 * repeat is 1..255. Address formulas and legal aliasing are in docs/HCCL.md.
 */
TW_API tw_hccl_handle_t tw_hccl_all_reduce(tw_hccl_t *hccl, const void *send, void *recv, uint64_t count, uint32_t type,
                                           uint32_t op, uint32_t repeat, uint32_t flags);
TW_API tw_hccl_handle_t tw_hccl_all_gather(tw_hccl_t *hccl, const void *send, void *recv, uint64_t send_count,
                                           uint32_t type, uint64_t stride, uint32_t repeat, uint32_t flags);
TW_API tw_hccl_handle_t tw_hccl_reduce_scatter(tw_hccl_t *hccl, const void *send, void *recv, uint64_t recv_count,
                                               uint32_t type, uint32_t op, uint64_t stride, uint32_t repeat,
                                               uint32_t flags);
TW_API tw_hccl_handle_t tw_hccl_alltoall(tw_hccl_t *hccl, const void *send, void *recv, uint64_t count, uint32_t type,
                                         uint64_t stride, uint32_t repeat, uint32_t flags);
/** The four arrays have one entry a rank and are copied. send_type must equal recv_type. */
TW_API tw_hccl_handle_t tw_hccl_alltoallv(tw_hccl_t *hccl, const void *send, const uint64_t *send_counts,
                                          const uint64_t *send_displs, uint32_t send_type, void *recv,
                                          const uint64_t *recv_counts, const uint64_t *recv_displs, uint32_t recv_type,
                                          uint32_t repeat, uint32_t flags);

/** One write of a batch: `count` elements from our memory into a window of `remote_rank`. */
typedef struct tw_hccl_batch_item {
    uint64_t local;  /**< address of the source */
    uint64_t remote; /**< address inside a window of the remote rank, as GetWindows* gave it here */
    uint64_t count;
    uint32_t type;
    uint32_t remote_rank;
} tw_hccl_batch_item_t;

/** The same on a communicator with profile a3: the address tells the rank. */
typedef struct tw_hccl_batch_item_a3 {
    uint32_t type; /**< 0 */
    uint32_t reserved[5];
    uint32_t length; /**< bytes */
    uint32_t src_low;
    uint32_t src_high;
    uint32_t dst_low;
    uint32_t dst_high;
    uint32_t reserved2[4];
} tw_hccl_batch_item_a3_t;

#define TW_HCCL_BATCH_MAX 2048 /**< a batch holds fewer items than this */

/**
 * One-sided writes; always committed. Wait means that our part has been sent. `items` is an array of n_items
 * tw_hccl_batch_item_t, or of tw_hccl_batch_item_a3_t on a communicator with profile a3; it is copied. `queue` is below
 * tw_hccl_queue_num.
 */
TW_API tw_hccl_handle_t tw_hccl_batch_write(tw_hccl_t *hccl, const void *items, uint32_t n_items, uint16_t queue);

/** One more round may run. Bad handles and surplus commits are ignored. Never blocks. */
TW_API void tw_hccl_commit(tw_hccl_t *hccl, tw_hccl_handle_t handle);
/** Blocks until one more round of the task is done. -1 at once if that round is not committed. */
TW_API int32_t tw_hccl_wait(tw_hccl_t *hccl, tw_hccl_handle_t handle);
/** The number of finished rounds, -1 for a bad handle; 0 after Finalize. Never blocks. */
TW_API int32_t tw_hccl_query(tw_hccl_t *hccl, tw_hccl_handle_t handle);
/** Tasks prepared later here start only after task `src` of the other group is done. */
TW_API int32_t tw_hccl_inter_group_sync(tw_hccl_t *hccl, int8_t src_group, tw_hccl_handle_t src);
/** No more tasks; with `sync` non-zero waits for all committed rounds. Uncommitted ones are cancelled. */
TW_API int32_t tw_hccl_finalize(tw_hccl_t *hccl, int32_t sync);

TW_API uint32_t tw_hccl_rank_id(const tw_hccl_t *hccl);  /**< UINT32_MAX before InitV2 */
TW_API uint32_t tw_hccl_rank_dim(const tw_hccl_t *hccl); /**< UINT32_MAX before InitV2 */
/** Peer-visible buffers of a rank, as this process sees them, while the communicator lives; NULL if rank >= rank_dim. */
TW_API void *tw_hccl_window_in(tw_hccl_t *hccl, uint32_t rank);
TW_API void *tw_hccl_window_out(tw_hccl_t *hccl, uint32_t rank);
TW_API uint64_t tw_hccl_window_bytes(const tw_hccl_t *hccl); /**< size of each of the two, 0 before InitV2 */
TW_API uint16_t tw_hccl_queue_num(const tw_hccl_t *hccl);

#ifdef __cplusplus
}
#endif
#endif
