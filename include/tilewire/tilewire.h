/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TILEWIRE_TILEWIRE_H
#define TILEWIRE_TILEWIRE_H
/*
 * Tilewire: matrix tiles go on the wire the moment they are computed.
 *
 * The whole C API. It reads top to bottom in the order in which it is learned:
 * version, status, start-up, communicators, memory, tensors, conversions, weights, matrix products,
 * fused operators, traces, and what the library knows of its machine.
 * The kernel-side task API is in tilewire/hccl.h.
 *
 * Conventions that hold everywhere:
 *  - Functions return a tw_status_t; tw_last_error() has the sentence with the details.
 *  - Handles and numbers are written through the last argument, ..._out, and only on success. Tensors and
 *    other outputs that are named in the arguments may hold anything after an error of a peer.
 *  - Argument structs start with struct_size and are filled by their TW_..._INIT macro. A zero field
 *    means its default. Old callers work with new libraries and the other way round.
 *  - Strings and arrays passed in are copied; pointers to memory that is sent or received are not.
 *  - Nothing here exits or raises signals, and only the log prints: to stderr, or where tw_init says.
 */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TW_API __attribute__((visibility("default")))
#define TW_CHECKED __attribute__((warn_unused_result))
#else
#define TW_API
#define TW_CHECKED
#endif

/* ---- Version --------------------------------------------------------------------------------- */

#define TW_VERSION_MAJOR 0
#define TW_VERSION_MINOR 1
#define TW_VERSION_PATCH 0
/** The version of this header as one number, 10000 a major, 100 a minor. */
#define TW_API_VERSION (TW_VERSION_MAJOR * 10000 + TW_VERSION_MINOR * 100 + TW_VERSION_PATCH)

/** The version of the library that is loaded, in the form of TW_API_VERSION. Since 0.1. */
TW_API int tw_version(void);

/* ---- Status ---------------------------------------------------------------------------------- */

/**
 * Results, grouped by what the caller can do about them:
 * -1..-19 fix the call; -20..-39 free something or change the set-up; -40..-59 a peer failed, the
 * communicator is lost but the process is fine; -60.. a bug in Tilewire, please report it.
 */
typedef enum tw_status {
    TW_OK = 0,
    TW_IN_PROGRESS = 1,          /**< not finished yet, ask again */
    TW_ERR_ARGUMENT = -1,        /**< an argument is wrong; the message names it and its value */
    TW_ERR_UNSUPPORTED = -2,     /**< a legal request that this build or machine cannot serve */
    TW_ERR_EXISTS = -3,          /**< the name is taken */
    TW_ERR_NOT_FOUND = -4,       /**< no such name */
    TW_ERR_STATE = -5,           /**< the call does not fit the state of its object */
    TW_ERR_NO_MEMORY = -20,      /**< no memory left, of the process or of the window */
    TW_ERR_SYSTEM = -21,         /**< a system call failed; the message has errno's text */
    TW_ERR_ADDRESS_IN_USE = -22, /**< somebody else listens on the rendezvous port */
    TW_ERR_DENIED = -23,         /**< wrong or missing token, or another user's process */
    TW_ERR_PEER_DEAD = -40,      /**< a peer's process ended */
    TW_ERR_PEER_LEFT = -41,      /**< a peer destroyed the communicator or cancelled the task */
    TW_ERR_TIMEOUT = -42,        /**< a peer was silent longer than the deadline */
    TW_ERR_DIVERGED = -43,       /**< the ranks called different things */
    TW_ERR_ABORTED = -44,        /**< tw_comm_abort was called, here or on a peer */
    TW_ERR_POISONED = -45,       /**< an earlier error ended this communicator */
    TW_ERR_INTERNAL = -60,       /**< a bug */
} tw_status_t;

/** A short constant English text for a status, never NULL. Since 0.1. */
TW_API const char *tw_status_string(tw_status_t status);

/**
 * The sentence that belongs to the last failure in the calling thread: which argument, which peer,
 * which step. Valid until the thread's next Tilewire call; never NULL. Since 0.1.
 */
TW_API const char *tw_last_error(void);

/* ---- Start-up -------------------------------------------------------------------------------- */

typedef enum tw_log_level {
    TW_LOG_NONE = 0,
    TW_LOG_ERROR = 1,
    TW_LOG_WARN = 2,
    TW_LOG_INFO = 3,
    TW_LOG_DEBUG = 4,
    TW_LOG_TRACE = 5,
} tw_log_level_t;

/** Receives one finished log line without a newline. Called from any thread, one at a time. */
typedef void (*tw_log_fn)(void *user, tw_log_level_t level, const char *line);

typedef struct tw_init_args {
    size_t struct_size;
    int api_version; /**< TW_API_VERSION, so that an incompatible library refuses */
    tw_log_fn log;   /**< NULL: stderr */
    void *log_user;
    /** Settings as "NAME=value" strings, NAME without the TILEWIRE_ prefix ("LOG=debug"), ended by
     *  NULL. They win over the environment. NULL: environment only. */
    const char *const *settings;
} tw_init_args_t;

#define TW_INIT_ARGS_INIT                                        \
    {                                                            \
        sizeof(tw_init_args_t), TW_API_VERSION, NULL, NULL, NULL \
    }

/**
 * Initialises the library: reads the TILEWIRE_* environment once. Optional: the first call of
 * anything else does it with defaults. Fails with TW_ERR_STATE when settings are given after the
 * library is already initialised, with TW_ERR_ARGUMENT when a setting is unknown or malformed.
 * Any thread. Since 0.1.
 */
TW_API TW_CHECKED tw_status_t tw_init(const tw_init_args_t *args);

/* ---- Communicators --------------------------------------------------------------------------- */

/**
 * A communication domain: some ranks, one of which is ours. A process may hold many, also several
 * ranks of one (then ranks are threads). One thread at a time may call into one tw_comm_t, except
 * tw_comm_abort and the kernel-side API, which any thread may call.
 */
typedef struct tw_comm tw_comm_t;

#define TW_NAME_MAX 127 /**< longest name of a communicator, in bytes */

/**
 * The caller's own way to exchange bytes while a communicator is made: every rank contributes
 * `bytes` bytes at `in`, and `out` receives those of all ranks in rank order. Returns 0 on success.
 * Called a few times during tw_comm_create, from the calling thread, never afterwards.
 */
typedef int (*tw_allgather_fn)(void *user, const void *in, void *out, size_t bytes);

typedef enum tw_transport {
    TW_TRANSPORT_AUTO = 0,    /**< threads if all ranks are in one process, else shm */
    TW_TRANSPORT_THREADS = 1, /**< ranks are threads of one process */
    TW_TRANSPORT_SHM = 2,     /**< ranks are processes of one host */
} tw_transport_t;

/** Limits of a vendor's product that the fused operators apply, so that code can be proved portable to it. */
typedef enum tw_profile {
    TW_PROFILE_DEFAULT = 0, /**< TILEWIRE_PROFILE */
    TW_PROFILE_NONE = 1,    /**< no limits but those of memory and arithmetic */
    TW_PROFILE_A2 = 2,      /**< Atlas A2 */
    TW_PROFILE_A3 = 3,      /**< Atlas A3 */
} tw_profile_t;

typedef struct tw_comm_args {
    size_t struct_size;
    /** Where the ranks meet: "tcp://host:port" (rank 0 listens there, the others connect; needs rank
     *  and size), or "env://", or NULL which means env:// unless allgather is set. env:// takes rank,
     *  size and address from RANK, WORLD_SIZE, MASTER_ADDR and TILEWIRE_PORT or MASTER_PORT (under
     *  torchrun, whose store owns MASTER_PORT, the port after it), or from Open MPI, MPICH or Slurm. */
    const char *address;
    int rank;                  /**< ours, 0..size-1; ignored with env:// */
    int size;                  /**< number of ranks, >= 1; ignored with env:// */
    const char *name;          /**< 1..127 bytes, the same on all ranks; NULL: rank 0 makes one up */
    const char *token;         /**< shared secret of a rendezvous that is not on loopback; NULL: TILEWIRE_TOKEN */
    tw_allgather_fn allgather; /**< when set, address must be NULL and this is used instead */
    void *allgather_user;
    tw_transport_t transport;
    size_t window_bytes;       /**< symmetric memory of each rank, at most; 0: TILEWIRE_WINDOW_BYTES (64 MiB) */
    uint64_t timeout_ns;       /**< silence of a peer inside a call; 0: TILEWIRE_TIMEOUT (60 s) */
    uint64_t enter_timeout_ns; /**< a peer that has not entered the call yet; 0: TILEWIRE_ENTER_TIMEOUT (30 min) */
    tw_profile_t profile;      /**< limits that the fused operators apply */
} tw_comm_args_t;

#define TW_COMM_ARGS_INIT                                                                                          \
    {                                                                                                              \
        sizeof(tw_comm_args_t), NULL, 0, 0, NULL, NULL, NULL, NULL, TW_TRANSPORT_AUTO, 0, 0, 0, TW_PROFILE_DEFAULT \
    }

/**
 * Makes a communicator. Collective: every rank calls it, with the same size and name. Blocks until all
 * have, with an address at most TILEWIRE_JOIN_TIMEOUT; how long `allgather` waits is its own affair. If any
 * rank cannot take part, all get an error that says which and why. *comm_out is owned by the caller; free
 * it with tw_comm_destroy. Any thread. Since 0.1.
 */
TW_API TW_CHECKED tw_status_t tw_comm_create(const tw_comm_args_t *args, tw_comm_t **comm_out);

/**
 * Finds a communicator of this process by name. Thread-ranks of one process share a name, so the
 * rank picks one; rank -1 stands for "the only one" and fails if there are several. The result is
 * borrowed: it lives until its owner destroys it. Any thread. Since 0.1.
 */
TW_API TW_CHECKED tw_status_t tw_comm_find(const char *name, int rank, tw_comm_t **comm_out);

/**
 * Splits a communicator: ranks with the same color >= 0 form a new one, ordered by key, then by
 * rank. A rank with color -1 takes part in the call and gets *comm_out = NULL. `name` names the new
 * communicator (the same for a color), NULL derives one. It has the transport, window_bytes, deadlines and
 * profile of `comm`, and memory of its own; *comm_out is owned by the caller. Collective over `comm`, which
 * must have no open kernel-side session. Blocks until all have called, within the deadlines of `comm`. Since 0.1.
 */
TW_API TW_CHECKED tw_status_t tw_comm_split(tw_comm_t *comm, int color, int key, const char *name,
                                            tw_comm_t **comm_out);

/**
 * Ends a communicator of ours. Local: peers that still wait for this rank get TW_ERR_PEER_LEFT.
 * Accepts NULL. What tw_mem_alloc and tw_mem_peer gave is gone. Operators that were prepared on it can only
 * be released. No other thread may use it any more. Since 0.1.
 */
TW_API void tw_comm_destroy(tw_comm_t *comm);

/**
 * Ends every call on the communicator, here and on all peers, with TW_ERR_ABORTED; `reason` (may be
 * NULL) is in their message. The communicator can then only be destroyed. Buffers of unfinished tasks
 * are free again when the call that waits for them, or tw_comm_destroy, has returned. Any thread. Since 0.1.
 */
TW_API void tw_comm_abort(tw_comm_t *comm, const char *reason);

/* Questions. Local, any thread. Since 0.1. */
TW_API int tw_comm_rank(const tw_comm_t *comm);         /**< our rank, -1 for NULL */
TW_API int tw_comm_size(const tw_comm_t *comm);         /**< number of ranks, -1 for NULL */
TW_API const char *tw_comm_name(const tw_comm_t *comm); /**< lives as long as comm; "" for NULL */

/** TW_OK while healthy, otherwise the status that poisoned it (sentence in tw_last_error). */
TW_API tw_status_t tw_comm_status(const tw_comm_t *comm);

/** What the ranks agreed to use. */
TW_API tw_transport_t tw_comm_transport(const tw_comm_t *comm);

/**
 * Returns when every rank has called it. Collective; not while a kernel-side session is open. Since 0.1.
 */
TW_API TW_CHECKED tw_status_t tw_comm_barrier(tw_comm_t *comm);

/* ---- Symmetric memory ------------------------------------------------------------------------ */

/**
 * Allocates memory that the peers reach directly, so that collectives on it copy nothing extra.
 * Local, not collective. 64-byte aligned, zeroed, backed at once: TW_ERR_NO_MEMORY rather than a
 * later crash. Lives until tw_mem_free or tw_comm_destroy. Any thread. Since 0.1.
 */
TW_API TW_CHECKED tw_status_t tw_mem_alloc(tw_comm_t *comm, size_t bytes, void **ptr_out);

/** Frees what tw_mem_alloc returned; NULL is fine. The caller knows that no peer uses it any more. Any thread.
 *  Since 0.1. */
TW_API void tw_mem_free(tw_comm_t *comm, void *ptr);

/**
 * Where this process sees memory of `rank` that lies at the same place in its window as `ptr` (from
 * tw_mem_alloc) does in ours. The ranks' allocations match if all ranks made the same ones in the
 * same order. Lives as long as the communicator. Any thread. Since 0.1.
 */
TW_API TW_CHECKED tw_status_t tw_mem_peer(tw_comm_t *comm, const void *ptr, int rank, void **ptr_out);

/* ---- Tensors --------------------------------------------------------------------------------- */

/** Kinds of elements; the values are those of DLPack. */
typedef enum tw_dtype_code {
    TW_CODE_INT = 0,
    TW_CODE_UINT = 1,
    TW_CODE_FLOAT = 2,
    TW_CODE_BFLOAT = 4,
} tw_dtype_code_t;

/** An element type: a code, its width in bits, and lanes, which is always 1 here. */
typedef struct tw_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} tw_dtype_t;

/** Initialisers of a tw_dtype_t, in C and C++: `tw_dtype_t type = TW_DTYPE_BF16;` */
#define TW_DTYPE_OF(code, bits) \
    {                           \
        code, bits, 1           \
    }
#define TW_DTYPE_INT8 TW_DTYPE_OF(TW_CODE_INT, 8)
#define TW_DTYPE_INT16 TW_DTYPE_OF(TW_CODE_INT, 16)
#define TW_DTYPE_INT32 TW_DTYPE_OF(TW_CODE_INT, 32)
#define TW_DTYPE_INT64 TW_DTYPE_OF(TW_CODE_INT, 64)
#define TW_DTYPE_UINT8 TW_DTYPE_OF(TW_CODE_UINT, 8)
#define TW_DTYPE_UINT16 TW_DTYPE_OF(TW_CODE_UINT, 16)
#define TW_DTYPE_UINT32 TW_DTYPE_OF(TW_CODE_UINT, 32)
#define TW_DTYPE_UINT64 TW_DTYPE_OF(TW_CODE_UINT, 64)
#define TW_DTYPE_FP16 TW_DTYPE_OF(TW_CODE_FLOAT, 16)
#define TW_DTYPE_FP32 TW_DTYPE_OF(TW_CODE_FLOAT, 32)
#define TW_DTYPE_FP64 TW_DTYPE_OF(TW_CODE_FLOAT, 64)
#define TW_DTYPE_BF16 TW_DTYPE_OF(TW_CODE_BFLOAT, 16)

/** Where memory is; the value is DLPack's. TW_DEVICE_CPU is the only kind known so far. */
typedef struct tw_device {
    int32_t type; /**< TW_DEVICE_CPU */
    int32_t id;   /**< not looked at for the CPU */
} tw_device_t;

#define TW_DEVICE_CPU 1

/**
 * A view of memory that the caller owns, laid out as DLPack's DLTensor, so that a DLTensor can be
 * passed as it is. Nothing of it is kept after a call. Strides may be zero or negative in inputs; an
 * output must not have two elements in one place. Inputs and outputs must not overlap.
 */
typedef struct tw_tensor {
    void *data; /**< plus byte_offset: the first element, aligned to its size; NULL if there is none */
    tw_device_t device;
    int32_t ndim; /**< 0..64 */
    tw_dtype_t dtype;
    int64_t *shape;       /**< ndim sizes >= 0; NULL is fine if ndim is 0 */
    int64_t *strides;     /**< ndim distances in elements; NULL: contiguous, the last dimension fastest */
    uint64_t byte_offset; /**< from data to the first element */
} tw_tensor_t;

/* ---- Conversions ----------------------------------------------------------------------------- */

/**
 * Packs dequantisation scales, and offsets if any, into the 64-bit patterns that int8 products take.
 * Bits 13..31 of a pattern are the top 19 bits of the fp32 scale, bits 37..45 the offset as a 9-bit
 * two's complement number, bit 46 is one, and all others are zero. round_mode 0 cuts the scale off;
 * 1 rounds it to nearest even, where a carry may reach the exponent, denormals become a zero of their
 * sign, and infinities and NaNs are cut off. The offset is rounded to nearest even and limited to
 * -256..255; NaN gives 0.
 *
 * `scale`: fp32, (n) or (1,n). `offset`: fp32 with as many dimensions, or NULL; of two vectors one may
 * have length 1 and then goes with each element of the other (not of an empty one), else shapes are equal.
 * `out`: int64 or uint64, the larger shape of the two. Any strides. Local, does not block. Any
 * thread. TW_ERR_ARGUMENT names the wrong argument, and `out` is untouched then. Since 0.1.
 */
TW_API TW_CHECKED tw_status_t tw_trans_quant_param(const tw_tensor_t *scale, const tw_tensor_t *offset, int round_mode,
                                                   const tw_tensor_t *out);

/**
 * Tells how many bytes the matrices of `nd` take in NZ layout.
 * NZ cuts each matrix, (rows, columns) being the last two dimensions, into blocks of 16 rows by C0
 * columns: C0 is 32 for elements of one byte and 16 for larger ones. A block is stored row by row,
 * blocks one below the other follow each other, then comes the next column of blocks; element (i,j)
 * of a matrix is at ((j/C0 * ceil(rows/16) + i/16) * 16 + i%16) * C0 + j%C0. The edges are padded with
 * zeros, and further dimensions are a batch of such matrices, one after the other.
 *
 * `nd`: elements of 8, 16, 32 or 64 bits, at least two dimensions; its data may be NULL. Local, does
 * not block. Any thread. TW_ERR_ARGUMENT names the wrong argument, also when the size does not fit
 * 64 bits. Since 0.1.
 */
TW_API TW_CHECKED tw_status_t tw_nz_bytes(const tw_tensor_t *nd, size_t *bytes_out);

/**
 * Copies matrices into NZ layout, padding with zeros.
 * `nd`: see tw_nz_bytes, any strides (a transposed view is stored as the matrix that it shows). `nz`:
 * tw_nz_bytes bytes are written there, of the nz_bytes that it has; any alignment. Local, does not
 * block. Any thread. TW_ERR_ARGUMENT names the wrong argument, and `nz` is untouched then. Since 0.1.
 */
TW_API TW_CHECKED tw_status_t tw_nz_from_nd(const tw_tensor_t *nd, void *nz, size_t nz_bytes);

/**
 * Copies matrices back out of NZ layout; the padding is not looked at.
 * `nz`: what tw_nz_from_nd wrote, in a buffer of nz_bytes. `nd`: receives the elements, any strides.
 * Local, does not block. Any thread. TW_ERR_ARGUMENT names the wrong argument, and the memory of `nd`
 * is untouched then. Since 0.1.
 */
TW_API TW_CHECKED tw_status_t tw_nz_to_nd(const void *nz, size_t nz_bytes, const tw_tensor_t *nd);

/**
 * Quantises each row (token) of `x` to int8 with a scale of its own, so that x is about y * scale.
 * In fp32, to which fp16 and bf16 are widened exactly: scale = max|x| / 127 over the row, rounded to
 * nearest even, and y = x / scale, rounded to fp32, then to the nearest integer, ties to even, and
 * limited to -128..127. A row whose scale is 0, because it is empty, all zeros, or below 2^-143
 * throughout, has y = 0. A row with an infinity has scale infinity, one with a NaN has scale NaN
 * (0x7fc00000), and both have y = 0: their product with the scale is NaN. Other rows do not notice.
 *
 * `comm`: whose workers compute, as in tw_matmul; nothing is sent, and only this rank calls. NULL: the calling
 * thread. `x`: fp16, bf16 or fp32, (..., k). `y`: int8, the same shape. `scale`: fp32, the shape without its
 * last dimension. Any strides, but elements of two of them must not alternate within a row. Blocks until y and scale
 * are there. One thread at a time on one comm. TW_ERR_ARGUMENT names the wrong argument, and the outputs are untouched
 * then. Since 0.1.
 */
TW_API TW_CHECKED tw_status_t tw_dynamic_quant(tw_comm_t *comm, const tw_tensor_t *x, const tw_tensor_t *y,
                                               const tw_tensor_t *scale);

/* ---- Weights ---------------------------------------------------------------------------------- */

/**
 * A right-hand matrix, or several of one shape, packed once for the kernels of this machine and level
 * (TILEWIRE_ISA) and used by any number of products, from any threads. Read-only.
 */
typedef struct tw_weight tw_weight_t;

/** How a right-hand matrix lies in memory. */
typedef enum tw_format {
    TW_FORMAT_ND = 0, /**< as the tensor's strides say */
    TW_FORMAT_NZ = 1, /**< as tw_nz_from_nd wrote it. Strides (n,1), or none: the (k,n) matrix was stored;
                           strides (1,k): its transpose, an (n,k) matrix, was */
} tw_format_t;

typedef struct tw_weight_args {
    size_t struct_size;
    /** fp32, fp16, bf16 or int8; (k,n), or (e,k,n) for e experts, 1..1048576. Unit stride along k or n. */
    const tw_tensor_t *x2;
    tw_format_t format;
    /** int8 weights of fp16 or bf16 products: w = (x2 + offset) * scale, both of the type of x1. (1) or
     *  (1,1): one scale; (n) or (1,n): one a column; (ceil(k/group),n): one a column and `group` rows.
     *  With experts: (e,1), (e,n) or (e,ceil(k/group),n). NULL: int8 is multiplied with int8. */
    const tw_tensor_t *antiquant_scale;
    const tw_tensor_t *antiquant_offset; /**< the same shape and type, or NULL */
    int64_t antiquant_group_size;        /**< a multiple of 32 in 32..k-1 with scales of groups, else 0 */
    /** Where to pack: memory of tw_weight_bytes bytes, aligned to 64, that outlives the weight; other
     *  processes that map it use it by tw_weight_open. NULL: the library's own, on huge pages if it can. */
    void *memory;
    size_t memory_bytes;
} tw_weight_args_t;

#define TW_WEIGHT_ARGS_INIT                                                  \
    {                                                                        \
        sizeof(tw_weight_args_t), NULL, TW_FORMAT_ND, NULL, NULL, 0, NULL, 0 \
    }

/**
 * Tells how many bytes the packed weight takes. The data of the tensors is not looked at and may be
 * NULL. Local, does not block. Any thread. Since 0.1.
 */
TW_API TW_CHECKED tw_status_t tw_weight_bytes(const tw_weight_args_t *args, size_t *bytes_out);

/**
 * Packs a weight. The tensors are not needed afterwards. *weight_out is owned by the caller; free it
 * with tw_weight_release. Local, does not block. Any thread. TW_ERR_ARGUMENT names the wrong argument,
 * TW_ERR_NO_MEMORY also says that memory_bytes is too small. Since 0.1.
 */
TW_API TW_CHECKED tw_status_t tw_weight_pack(const tw_weight_args_t *args, tw_weight_t **weight_out);

/**
 * The weight that another process, or an earlier call, packed into this memory. TW_ERR_ARGUMENT when
 * there is none, TW_ERR_UNSUPPORTED when it was packed for other kernels than those in use here. It
 * lives as long as the memory. Local. Any thread. Since 0.1.
 */
TW_API TW_CHECKED tw_status_t tw_weight_open(void *memory, size_t memory_bytes, tw_weight_t **weight_out);

/** Frees a weight of tw_weight_pack; the caller's own memory is left alone. NULL is fine. Since 0.1. */
TW_API void tw_weight_release(tw_weight_t *weight);

/* ---- Matrix products -------------------------------------------------------------------------- */

typedef struct tw_matmul_args {
    size_t struct_size;
    /** (m,k), or with more dimensions (...,k), whose rows lie at one distance. Unit stride along k. */
    const tw_tensor_t *x1;
    const tw_tensor_t *x2;     /**< see tw_weight_args_t; NULL with weight */
    const tw_weight_t *weight; /**< packed x2; then x2, format and antiquant_* are not given */
    tw_format_t format;        /**< of x2 */
    const tw_tensor_t *y;      /**< (m,n) or (...,n), unit stride along n; the result */
    /** (n). Type of x1, or fp32: added to the fp32 sums. int32 with int8 x1: added before scaling;
     *  fp32, fp16 or bf16 with int8 x1: added after it. */
    const tw_tensor_t *bias;
    /** Shape of y; added to the result, which is rounded again. Type of y, any float type if y is fp32; not
     *  with int32. */
    const tw_tensor_t *x3;
    const tw_tensor_t *antiquant_scale; /**< see tw_weight_args_t */
    const tw_tensor_t *antiquant_offset;
    int64_t antiquant_group_size;
    /** int8 x1: (1), (n) or (1,n); int64 or uint64 patterns of tw_trans_quant_param, bf16, fp16 or fp32 */
    const tw_tensor_t *dequant_scale;
    const tw_tensor_t *pertoken_scale; /**< int8 x1 with dequant_scale: fp32, one a row: (m) or (m,1) */
    /** Groups of rows with a matrix each: the first counts[0] rows of x1 with matrix 0 of x2, and so on;
     *  n_counts is e, and the counts add up to m. Then bias is (e,n) and dequant_scale (e,1) or (e,n). */
    const int64_t *counts;
    int64_t n_counts; /**< 0: x2 is one matrix */
} tw_matmul_args_t;

#define TW_MATMUL_ARGS_INIT                                                                                            \
    {                                                                                                                  \
        sizeof(tw_matmul_args_t), NULL, NULL, NULL, TW_FORMAT_ND, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, 0 \
    }

/**
 * y = x1 * x2, with what the other arguments add. Products and sums are fp32, or int32 with int8
 * operands (k < 131072), in an order that depends on k and the ISA level alone: the same row of x1
 * gives the same bits whatever m is, on any number of threads, packed or not. In fp32, each
 * operation rounded to nearest even:
 *   float types   v = sum + bias
 *   int8          s = sum + bias (int32); v = s * dequant_scale * pertoken_scale + bias (float)
 * then y = v rounded to its type, and y = y + x3 rounded again; if y is fp32 nothing else is rounded.
 * Types of y: that of x1, or fp32; with int8 x1 int32 without dequant_scale, else fp16, bf16 or fp32.
 * m, n and k may be 0; k = 0 gives sums of 0. At the levels avx512bf16 and amx products of bf16 take
 * denormal bf16 factors, int8 weights below 2^-126 once scaled, and denormal sums for zero.
 *
 * `comm`: whose workers compute (TILEWIRE_THREADS of them, by default its share of the allowed cores);
 * nothing is sent, and only this rank calls; the memory they work in is kept until comm is destroyed.
 * NULL: the calling thread, with memory for this call.
 * Blocks until y is there. One thread at a time on one comm. TW_ERR_ARGUMENT names the wrong
 * argument. y must not overlap what is read. Since 0.1.
 */
TW_API TW_CHECKED tw_status_t tw_matmul(tw_comm_t *comm, const tw_matmul_args_t *args);

/* ---- Fused operators --------------------------------------------------------------------------- */

/*
 * A matrix product and the collective after it, or before it, as one operator: tiles travel while
 * others are computed. Every rank of the communicator calls the same operator with matching
 * arguments, in the same order; m, k, n below are those of one rank. All arguments are checked before
 * anything is sent, and a wrong one is TW_ERR_ARGUMENT on that rank. Ranks whose calls do not match
 * all get TW_ERR_DIVERGED, which says who differs and how; so do those that meet a barrier or a split instead of an
 * operator (a collective of hccl.h instead of one waits for the deadline of entering). After that, or after any error
 * about a peer, the communicator is lost and the contents of the outputs are unspecified.
 *
 * The bits of a result depend on the inputs, the number of ranks, the wire and the ISA level: not on
 * m, rounds, threads, transport or timing. Outputs must not overlap inputs or each other.
 */

/** What partial results are between ranks. */
typedef enum tw_wire {
    /** The type of y: each rank rounds what tw_matmul would return, the sum over the ranks is fp32, in
     *  the order of the ranks, and is rounded once. */
    TW_WIRE_OUT = 0,
    TW_WIRE_F32 = 1,  /**< fp32: nothing is rounded before the sum over the ranks is */
    TW_WIRE_INT8 = 2, /**< int8, with comm_quant_scale_1 and _2: mm_all_reduce only */
} tw_wire_t;

#define TW_ROUNDS_AUTO 0 /**< as the cost model says, which all ranks evaluate alike */
#define TW_ROUNDS_UNFUSED \
    (-1) /**< mm_reduce_scatter, mm_all_reduce: all products before the first sum; others: as AUTO */
#define TW_ROUNDS_MAX 4096

/**
 * y = the rows r*m/W .. (r+1)*m/W - 1 of the sum over all ranks of x1 * x2 (+ bias), on rank r of W.
 * m must be a multiple of W; m or n may be 0. Float types as in tw_matmul but fp32. int8 x1 and x2:
 * v = sum * x2_scale[column] * x1_scale[row] + bias, in fp32, each operation rounded. It is faster with y from
 * tw_mem_alloc, where ranks that wait write sums for one that is behind. A rank that has its own result helps the
 * others, if these have a core each, for at most as long as it has worked; with tw_op_test it does not stay.
 */
typedef struct tw_mm_reduce_scatter_args {
    size_t struct_size;
    const tw_tensor_t *x1;       /**< (m,k), unit stride along k: fp16, bf16 or int8 */
    const tw_tensor_t *x2;       /**< (k,n), the type of x1; NULL with weight */
    const tw_weight_t *weight;   /**< packed x2 */
    tw_format_t format;          /**< of x2 */
    const tw_tensor_t *y;        /**< (m/W,n), unit stride along n: the type of x1; with int8 fp16 or bf16 */
    const tw_tensor_t *bias;     /**< (n), added on every rank: the type of x1; with int8 fp32, fp16 or bf16 */
    const tw_tensor_t *x1_scale; /**< int8: fp32, (m) or (m,1); NULL: 1 */
    const tw_tensor_t *x2_scale; /**< int8: fp32, or int64 or uint64 patterns, then y is fp16; (1), (n) or (1,n) */
    tw_wire_t wire;              /**< TW_WIRE_OUT or TW_WIRE_F32 */
    int rounds;                  /**< TW_ROUNDS_AUTO, TW_ROUNDS_UNFUSED, or 1..TW_ROUNDS_MAX */
} tw_mm_reduce_scatter_args_t;

#define TW_MM_REDUCE_SCATTER_ARGS_INIT                                                                              \
    {                                                                                                               \
        sizeof(tw_mm_reduce_scatter_args_t), NULL, NULL, NULL, TW_FORMAT_ND, NULL, NULL, NULL, NULL, TW_WIRE_OUT, 0 \
    }

/**
 * y = the sum over all ranks of x1 * x2 (+ bias) (scaled) (+ x3), the same bits on all ranks. What
 * tw_matmul computes for these arguments is summed: bias and x3 count once a rank. Types, in rows:
 *   x1        x2    bias   x3, y  antiquant  dequant_scale  pertoken  comm_quant_scale
 *   fp16      fp16  fp16   fp16   -          -              -         -
 *   bf16      bf16  bf16   bf16   -          -              -         -
 *   fp16      int8  fp16   fp16   fp16       -              -         -
 *   bf16      int8  bf16   bf16   bf16       -              -         -
 *   int8      int8  int32  fp16   -          (u)int64       -         fp16 or none
 *   int8      int8  int32  bf16   -          bf16           -         bf16 or none
 *   int8      int8  int32  fp16   -          fp32           fp32      fp16 or none
 *   int8      int8  int32  bf16   -          bf16           fp32      bf16 or none
 * With comm_quant_scale_1 and _2 (s1, s2, one a column, the same on all ranks) the wire is int8, c being
 * a rank's rounded result: q = int8(half(c / s1)), u = (sum of q over the ranks) * (s1 / s2),
 * p = int8(half(u)), y = p * s2 rounded to its type; int8() rounds to nearest even and saturates.
 * m, k and n are at least 1.
 */
typedef struct tw_mm_all_reduce_args {
    size_t struct_size;
    const tw_tensor_t *x1;                 /**< (m,k) or (b,s,k): then m is b*s. Unit stride along k. */
    const tw_tensor_t *x2;                 /**< (k,n); NULL with weight */
    const tw_weight_t *weight;             /**< packed x2, with its antiquant scales */
    tw_format_t format;                    /**< of x2 */
    const tw_tensor_t *y;                  /**< (m,n) or (b,s,n), unit stride along n; from tw_mem_alloc it is faster */
    const tw_tensor_t *bias;               /**< (n) */
    const tw_tensor_t *x3;                 /**< the shape of y */
    const tw_tensor_t *antiquant_scale;    /**< see tw_weight_args_t */
    const tw_tensor_t *antiquant_offset;   /**< the shape and type of antiquant_scale, or NULL */
    int64_t antiquant_group_size;          /**< see tw_weight_args_t */
    const tw_tensor_t *dequant_scale;      /**< (1), (n) or (1,n) */
    const tw_tensor_t *pertoken_scale;     /**< (m) */
    const tw_tensor_t *comm_quant_scale_1; /**< (n) or (1,n) */
    const tw_tensor_t *comm_quant_scale_2; /**< the same shape */
    tw_wire_t wire;                        /**< with comm_quant_scale: TW_WIRE_OUT (0) or TW_WIRE_INT8 */
    int rounds;                            /**< as in tw_mm_reduce_scatter_args_t */
} tw_mm_all_reduce_args_t;

#define TW_MM_ALL_REDUCE_ARGS_INIT                                                                                    \
    {                                                                                                                 \
        sizeof(tw_mm_all_reduce_args_t), NULL, NULL, NULL, TW_FORMAT_ND, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, \
            NULL, NULL, TW_WIRE_OUT, 0                                                                                \
    }

/**
 * y = (the x1 of all ranks, one below the other) * x2 (+ bias), with this rank's own x2 and bias. m is
 * the same on all ranks and may be 0. int8: v = sum * x2_scale[column] * x1_scale[row] + bias, in fp32;
 * x1_scale is gathered too. It is faster with x1 from tw_mem_alloc, which peers read where it is.
 */
typedef struct tw_all_gather_mm_args {
    size_t struct_size;
    const tw_tensor_t *x1;         /**< (m,k), unit stride along k: fp16, bf16 or int8 */
    const tw_tensor_t *x2;         /**< (k,n), the type of x1; NULL with weight */
    const tw_weight_t *weight;     /**< packed x2 */
    tw_format_t format;            /**< of x2 */
    const tw_tensor_t *y;          /**< (W*m,n), unit stride along n: the type of x1; with int8 fp16 or bf16 */
    const tw_tensor_t *gather_out; /**< (W*m,k), unit stride along k, the type of x1: all of x1; NULL: not wanted */
    const tw_tensor_t *bias;       /**< as in tw_mm_reduce_scatter_args_t; so are the next two */
    const tw_tensor_t *x1_scale;
    const tw_tensor_t *x2_scale;
    int rounds; /**< as in tw_mm_reduce_scatter_args_t */
} tw_all_gather_mm_args_t;

#define TW_ALL_GATHER_MM_ARGS_INIT                                                                       \
    {                                                                                                    \
        sizeof(tw_all_gather_mm_args_t), NULL, NULL, NULL, TW_FORMAT_ND, NULL, NULL, NULL, NULL, NULL, 0 \
    }

#define TW_GMM_TRANS_WEIGHT 1u    /**< gmm_weight is (e,N1,H1) */
#define TW_GMM_TRANS_MM_WEIGHT 2u /**< mm_weight is (N2,H2) */

/**
 * Expert parallelism, on the way back: rank r has e experts; the rows of gmm_x come expert by expert,
 * and for each expert rank by rank: send_counts[d*e+j] rows of expert j that go to rank d. Each is
 * multiplied with its expert's matrix and sent. y has, rank by rank and for each rank expert by
 * expert, recv_counts[s*e+j] rows from expert j of rank s. send_counts[d*e+j] here is
 * recv_counts[r*e+j] on rank d. Counts may be 0. All floats are fp16, or all are bf16.
 * A shared expert is computed on the way: mm_y = mm_x * mm_weight. It is faster with y from tw_mem_alloc, where the
 * senders write its rows.
 */
typedef struct tw_gmm_alltoallv_args {
    size_t struct_size;
    const tw_tensor_t *gmm_x;      /**< (A,H1), A the sum of send_counts, unit stride along H1 */
    const tw_tensor_t *gmm_weight; /**< (e,H1,N1); NULL with gmm_packed */
    const tw_weight_t *gmm_packed; /**< packed gmm_weight, e matrices */
    const int64_t *send_counts;    /**< e*W counts */
    const int64_t *recv_counts;    /**< e*W counts */
    int64_t n_counts;              /**< e*W */
    const tw_tensor_t *mm_x;       /**< (BS,H2), or NULL: no shared expert */
    const tw_tensor_t *mm_weight;  /**< (H2,N2); NULL with mm_packed */
    const tw_weight_t *mm_packed;  /**< packed mm_weight */
    const tw_tensor_t *y;          /**< (BSK,N1), BSK the sum of recv_counts, unit stride along N1 */
    const tw_tensor_t *mm_y;       /**< (BS,N2), unit stride along N2; NULL without mm_x */
    unsigned flags;                /**< TW_GMM_TRANS_... */
    int rounds;                    /**< as in tw_mm_reduce_scatter_args_t */
} tw_gmm_alltoallv_args_t;

#define TW_GMM_ALLTOALLV_ARGS_INIT                                                                           \
    {                                                                                                        \
        sizeof(tw_gmm_alltoallv_args_t), NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 0, 0 \
    }

/**
 * Expert parallelism, on the way out, the inverse of tw_gmm_alltoallv with the counts exchanged: the rows
 * of gmm_x come rank by rank and for each rank expert by expert, send_counts[d*e+j] rows for expert j
 * of rank d. gmm_y has, expert by expert and for each expert rank by rank, the products of the
 * recv_counts[s*e+j] rows that came from rank s for expert j; permute_out has these rows themselves. It is faster
 * with gmm_x from tw_mem_alloc.
 */
typedef struct tw_alltoallv_gmm_args {
    size_t struct_size;
    const tw_tensor_t *gmm_x;      /**< (BSK,H1), BSK the sum of send_counts, unit stride along H1 */
    const tw_tensor_t *gmm_weight; /**< from here to mm_weight as in tw_gmm_alltoallv_args_t */
    const tw_weight_t *gmm_packed;
    const int64_t *send_counts;
    const int64_t *recv_counts;
    int64_t n_counts;
    const tw_tensor_t *mm_x;
    const tw_tensor_t *mm_weight;
    const tw_weight_t *mm_packed;
    const tw_tensor_t *gmm_y;       /**< (A,N1), A the sum of recv_counts, unit stride along N1 */
    const tw_tensor_t *mm_y;        /**< (BS,N2), unit stride along N2; NULL without mm_x */
    const tw_tensor_t *permute_out; /**< (A,H1), unit stride along H1; NULL: not wanted */
    unsigned flags;                 /**< TW_GMM_TRANS_... */
    int rounds;                     /**< as in tw_mm_reduce_scatter_args_t */
} tw_alltoallv_gmm_args_t;

#define TW_ALLTOALLV_GMM_ARGS_INIT                                                                                 \
    {                                                                                                              \
        sizeof(tw_alltoallv_gmm_args_t), NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0 \
    }

/**
 * The operators. Collective; each returns when its outputs are there and its inputs are free. They
 * compute on the workers of comm, as tw_matmul does. Memory that a call needed stays with comm for the next
 * one. Not while a kernel-side session is open. Since 0.1.
 */
TW_API TW_CHECKED tw_status_t tw_mm_reduce_scatter(tw_comm_t *comm, const tw_mm_reduce_scatter_args_t *args);
TW_API TW_CHECKED tw_status_t tw_mm_all_reduce(tw_comm_t *comm, const tw_mm_all_reduce_args_t *args);
TW_API TW_CHECKED tw_status_t tw_all_gather_mm(tw_comm_t *comm, const tw_all_gather_mm_args_t *args);
TW_API TW_CHECKED tw_status_t tw_gmm_alltoallv(tw_comm_t *comm, const tw_gmm_alltoallv_args_t *args);
TW_API TW_CHECKED tw_status_t tw_alltoallv_gmm(tw_comm_t *comm, const tw_alltoallv_gmm_args_t *args);

/**
 * A prepared operator: arguments checked, schedule chosen, memory at hand; then started any number of
 * times. The memory of the tensors and packed weights stays where it was; what it holds is read
 * between start and the end of wait. The structs themselves and the counts are not needed after
 * prepare. Once its communicator is destroyed it can only be released.
 */
typedef struct tw_op tw_op_t;

/** Prepares an operator. Local, does not block; but every rank prepares and starts the same ones. *op_out is
 *  owned by the caller; free it with tw_op_release. Since 0.1. */
TW_API TW_CHECKED tw_status_t tw_mm_reduce_scatter_prepare(tw_comm_t *comm, const tw_mm_reduce_scatter_args_t *args,
                                                           tw_op_t **op_out);
TW_API TW_CHECKED tw_status_t tw_mm_all_reduce_prepare(tw_comm_t *comm, const tw_mm_all_reduce_args_t *args,
                                                       tw_op_t **op_out);
TW_API TW_CHECKED tw_status_t tw_all_gather_mm_prepare(tw_comm_t *comm, const tw_all_gather_mm_args_t *args,
                                                       tw_op_t **op_out);
TW_API TW_CHECKED tw_status_t tw_gmm_alltoallv_prepare(tw_comm_t *comm, const tw_gmm_alltoallv_args_t *args,
                                                       tw_op_t **op_out);
TW_API TW_CHECKED tw_status_t tw_alltoallv_gmm_prepare(tw_comm_t *comm, const tw_alltoallv_gmm_args_t *args,
                                                       tw_op_t **op_out);

/**
 * Starts a prepared operator; never blocks. One operator of a communicator runs at a time: TW_ERR_STATE
 * while another is started and not waited for. The work is done in tw_op_test and tw_op_wait, so a rank
 * that does not call them keeps its peers waiting. Since 0.1.
 */
TW_API TW_CHECKED tw_status_t tw_op_start(tw_op_t *op);

/** Does a piece of the work that needs no waiting. TW_OK: finished; TW_IN_PROGRESS: call again. Since 0.1. */
TW_API TW_CHECKED tw_status_t tw_op_test(tw_op_t *op);

#define TW_WAIT_FOREVER 0 /**< a timeout of tw_op_wait: none but the communicator's own deadlines */

/** Does the rest. TW_OK: finished. TW_IN_PROGRESS: not finished after about timeout_ns; never with
 *  TW_WAIT_FOREVER, which has the communicator's own deadlines alone. TW_ERR_STATE when it was never started; once
 *  it has ended, the same again. Since 0.1. */
TW_API TW_CHECKED tw_status_t tw_op_wait(tw_op_t *op, uint64_t timeout_ns);

/** Writes, ended by a NUL and cut off at `bytes`, how the operator is computed: of mm_reduce_scatter and mm_all_reduce
 *  the schedule that was chosen and why, of the others how rows come and go; and the kernel. Local. Since 0.1. */
TW_API TW_CHECKED tw_status_t tw_op_explain(const tw_op_t *op, char *text, size_t bytes);

/** Frees a prepared operator; NULL is fine. If it was started and not waited for, its communicator is lost. Any
 *  thread, if no other one uses the operator, nor, if it was started and not waited for, another one on its
 *  communicator; that may be destroyed meanwhile. Since 0.1. */
TW_API void tw_op_release(tw_op_t *op);

/* ---- Traces ----------------------------------------------------------------------------------- */

/** One thing that a worker did in an operator. */
typedef struct tw_trace_record {
    const char *what;  /**< "product" (also ", sum", ", shared"), "send", "reduce", "copy", "pack", "wait": constants */
    int32_t worker;    /**< 0..TILEWIRE_THREADS-1 */
    int32_t peer;      /**< whom it is for, or from whom; -1: nobody, or several */
    int64_t row, rows; /**< of the product or matrix that it is about */
    int64_t col, cols;
    uint64_t begin_ns, end_ns; /**< CLOCK_MONOTONIC, which the processes of a host share */
} tw_trace_event_t;

/** Keeps the next n_events events of the communicator's operators, and forgets those before; 0 ends that. Local.
 *  Since 0.1. */
TW_API TW_CHECKED tw_status_t tw_trace_start(tw_comm_t *comm, size_t n_events);

/** Event number `index` since tw_trace_start; TW_ERR_NOT_FOUND past the last one kept. Local, not while an
 *  operator runs. Since 0.1. */
TW_API TW_CHECKED tw_status_t tw_trace_event(tw_comm_t *comm, size_t index, tw_trace_event_t *event_out);

/* ---- What the library knows ------------------------------------------------------------------ */

/** One line of `tilewire info`: all strings live as long as the library, help may be "". */
typedef struct tw_info_row {
    const char *section; /**< "version", "cpu", "topology", "kernel", "transport", "config" */
    const char *name;
    const char *value;
    const char *help;
} tw_info_row_t;

/** Fills row number `index`; TW_ERR_NOT_FOUND past the end. Any thread. Since 0.1. */
TW_API TW_CHECKED tw_status_t tw_info(unsigned index, tw_info_row_t *row_out);

#ifdef __cplusplus
}
#endif
#endif
