/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CALLS_H
#define CALLS_H
/*
 * The extension tilewire._calls: calls like one that was made before, in C, from tensors to the operator and back.
 *
 * A plan is the filled argument struct of a call that went well. It is found by a key: the layouts of the tensors and
 * all options. A call sets the addresses of its tensors in the struct, makes the results and runs the operator. What
 * is not known here, or needs a sentence about what is wrong, goes the long way, tilewire.raw.
 *
 * Tensors are looked into through DLPack's table of C functions, Tensor.__dlpack_c_exchange_api__, so nothing here is
 * compiled against PyTorch. Everything runs with Python's lock held but the operator itself; the struct of a plan is
 * written with the communicator's lock held as well.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <tilewire/tilewire.h>

enum {
    WORDS_MAX = 160,  /* of a key */
    OBJECTS_MAX = 48, /* that a key refers to */
    RESTS_MAX = 8,    /* operands beside the two matrices */
    COUNTS_MAX = 1024,
    RESULTS_MAX = 2,
};

/* ---- What is known of Python (module.c) -------------------------------------------------------- */

/* The part of DLPack's DLPackExchangeAPI, major version 1, that is used. tw_tensor_t is its DLTensor. */
typedef struct exchange {
    uint32_t major, minor;
    struct exchange *older;
    void *allocate, *to_managed, *from_managed;
    int (*view)(void *tensor, tw_tensor_t *view_out); /* -1: an exception is set */
    void *stream;
} exchange_t;

/* Types and functions, given once by _plan.py. */
#define GIVEN(X) \
    X(tensor)    \
    X(parameter) \
    X(weight)    \
    X(dtype)     \
    X(known)     \
    X(check) X(empty) X(modes) X(tracing) X(transforms) X(forward_ad) X(grad_enabled) X(increment_version)

/* Attributes that are asked for. */
#define NAMES(X) \
    X(handle)    \
    X(lock)      \
    X(plans)     \
    X(results)   \
    X(live)      \
    X(make)      \
    X(acquire) X(release) X(key) X(requires_grad) X(is_neg) X(_current_level)

#define FIELD(name) PyObject *name;
typedef struct given {
    GIVEN(FIELD)
    Py_ssize_t plain_elements; /* a weight of more has a packed copy */
    Py_ssize_t least_bytes;    /* a result of more is kept for the next call */
    int (*op_start)(void *op);
    int (*op_wait)(void *op, uint64_t timeout_ns);
} given_t;

typedef struct names {
    NAMES(FIELD)
} names_t;
#undef FIELD

extern exchange_t *calls_exchange;
extern given_t calls_given;
extern names_t calls_names;

/* The truth of a new reference, which may be NULL. -1: an exception is set. */
int calls_truth(PyObject *value);

int64_t calls_now_ns(void);

/* ---- Keys and plans (table.c) ------------------------------------------------------------------ */

/* Objects stand for themselves, so a key holds them: no other object gets their address. */
typedef struct plan_key {
    bool overflow; /* it cannot be a key */
    int n, n_objects;
    uint64_t words[WORDS_MAX];
    PyObject *objects[OBJECTS_MAX];
} plan_key_t;

void key_add_word(plan_key_t *key, uint64_t word);
void key_add_object(plan_key_t *key, PyObject *object); /* takes the reference over */
void key_add_option(plan_key_t *key, PyObject *option);
void key_add_layout(plan_key_t *key, const tw_tensor_t *view, int from); /* sizes from this dimension on */
void key_end(plan_key_t *key);

typedef int op_fn(void *comm, const void *args);

typedef struct result {
    tw_tensor_t *view;
    PyObject *layout; /* shape, strides, dtype, and bytes if Results.make makes it: arguments */
    bool large;
} result_t;

typedef struct plan {
    int uses;
    op_fn *function;
    void *args;
    PyObject *kept; /* whose memory the pointers are in */
    tw_tensor_t *left, *right, *rest[RESTS_MAX];
    int n_rest;
    int64_t *counts; /* [n_counts], first those to send; NULL: not grouped, and all sizes are in the key */
    Py_ssize_t n_counts;
    result_t results[RESULTS_MAX];
    int n_results;
} plan_t;

void plan_drop(plan_t *plan); /* one use less */

/* The plans of a communicator, in a capsule that it keeps. */
typedef struct table table_t;

PyObject *table_new(void);
table_t *table_of(PyObject *comm); /* NULL: an exception is set */
plan_t *table_find(const table_t *table, const plan_key_t *key);
bool table_add(table_t *table, const plan_key_t *key, plan_t *plan); /* false: no memory */

/* ---- Operands (operands.c) --------------------------------------------------------------------- */

enum {
    ANY_CPU = -1,  /* in place of the number of an npu: tensors are on the CPU */
    SEEN_CPU = -2, /* and PyTorch has to see the call if it has a reason to */
};

/* What a call is given. */
typedef struct request {
    PyObject *comm, *name;
    int where; /* the number of an npu, or as above */
    PyObject *x1, *x2, *rest, *options;
    PyObject *send, *recv; /* of grouped operators, else NULL */
} request_t;

typedef struct operands {
    PyObject *copy; /* the packed weight, held during the call, or NULL */
    tw_tensor_t left, right, rest[RESTS_MAX];
    int n_rest;
    int64_t rows;        /* that come: the sum of `recv` */
    Py_ssize_t n_counts; /* of both lists */
    int64_t counts[COUNTS_MAX];
} operands_t;

/* Key and operands of a call. False, perhaps with an exception: it has to go the long way. In either case the caller
 * calls operands_end. */
bool operands_take(const request_t *request, PyObject *options, plan_key_t *key, operands_t *operands);
void operands_end(plan_key_t *key, operands_t *operands);

/* ---- Running (run.c) --------------------------------------------------------------------------- */

/* Something to be done with a lock held, which gives an operator's status. False: an exception is set. */
typedef bool locked_fn(void *data, int *status_out);

/* Does it. False: an exception is set, also if the status is one of failure. */
bool calls_run_locked(PyObject *lock, locked_fn *work, void *data);

/* The result, or a pair of them: of a grouped operator always. NULL: an exception is set. */
PyObject *plan_run(PyObject *comm, plan_t *plan, const operands_t *operands);

/* ---- Prepared calls (prepared.c) --------------------------------------------------------------- */

PyObject *prepared_type(void); /* NULL: an exception is set */

#endif
