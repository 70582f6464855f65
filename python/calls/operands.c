/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of a call from Python as the C library takes them, and the key of its plan. */
#include "calls.h"

enum {
    DEVICE_CPU = 1,  /* kDLCPU */
    DEVICE_NPU = 12, /* kDLExtDev: the devices of torch_npu */
};

static bool is_tensor(PyObject *object)
{
    PyObject *type = (PyObject *)Py_TYPE(object);
    return type == calls_given.tensor || type == calls_given.parameter;
}

/* Whether PyTorch has to see a call with this tensor; also if that cannot be told. */
static bool is_watched(PyObject *tensor)
{
    const int wants = calls_truth(PyObject_GetAttr(tensor, calls_names.requires_grad));
    if (wants != 0 && (wants < 0 || calls_truth(PyObject_CallNoArgs(calls_given.grad_enabled)) != 0))
        return true;
    return calls_truth(PyObject_CallMethodObjArgs(tensor, calls_names.is_neg, NULL)) != 0;
}

/* The tensor as the C library takes it, if it is one that may come here. */
static bool view_of(PyObject *tensor, int where, tw_tensor_t *view_out)
{
    if (!is_tensor(tensor) || (where != ANY_CPU && is_watched(tensor)) || calls_exchange->view(tensor, view_out) != 0)
        return false;
    view_out->data = (char *)view_out->data + view_out->byte_offset;
    if (view_out->device.type == DEVICE_CPU)
        return where < 0;
    return view_out->device.type == DEVICE_NPU && view_out->device.id == where;
}

static int64_t elements(const tw_tensor_t *view)
{
    int64_t n = 1;
    for (int i = 0; i < view->ndim; i++)
        n *= view->shape[i];
    return n;
}

/* A plain weight: small ones by their layout; *packed_out is a new reference to the packed copy of a large one. */
static bool take_plain(plan_key_t *key, operands_t *operands, PyObject *x2, int where, PyObject **packed_out)
{
    tw_tensor_t *view = &operands->right;
    const bool there = view_of(x2, where, view);
    if (!there && (where < 0 || PyErr_Occurred() || !view_of(x2, ANY_CPU, view))) /* an npu's may be on the CPU */
        return false;
    if (elements(view) <= calls_given.plain_elements) {
        key_add_word(key, 'x');
        key_add_layout(key, view, 0);
        return true;
    }
    if (view->device.type != DEVICE_CPU)
        return false;
    *packed_out = PyObject_CallFunctionObjArgs(calls_given.known, x2, NULL);
    return *packed_out && *packed_out != Py_None;
}

/* A packed weight goes by its name, which no other one ever has. */
static bool take_right(plan_key_t *key, operands_t *operands, PyObject *x2, int where)
{
    if ((PyObject *)Py_TYPE(x2) == calls_given.weight) {
        Py_INCREF(x2);
        operands->copy = x2;
    } else if (!take_plain(key, operands, x2, where, &operands->copy)) {
        return false;
    }
    if (!operands->copy)
        return true;
    PyObject *name = PyObject_GetAttr(operands->copy, calls_names.key);
    if (!name)
        return false;
    key_add_word(key, 'w');
    key_add_object(key, name);
    return true;
}

static bool take_rest(plan_key_t *key, operands_t *operands, PyObject *rest, int where)
{
    const Py_ssize_t n = PyTuple_Size(rest);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *tensor = PyTuple_GetItem(rest, i);
        if (tensor == Py_None)
            continue;
        if (operands->n_rest == RESTS_MAX || !view_of(tensor, where, &operands->rest[operands->n_rest]))
            return false;
        key_add_word(key, 'r');
        key_add_word(key, (uint64_t)i);
        key_add_layout(key, &operands->rest[operands->n_rest++], 0);
    }
    return true;
}

/* A list or a tuple of counts; their sum in *sum_out. */
static bool take_counts(operands_t *operands, PyObject *counts, int64_t *sum_out)
{
    const bool list = PyList_CheckExact(counts);
    if (!list && !PyTuple_CheckExact(counts))
        return false;
    const Py_ssize_t n = list ? PyList_Size(counts) : PyTuple_Size(counts);
    *sum_out = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = list ? PyList_GetItem(counts, i) : PyTuple_GetItem(counts, i);
        if (!item || !PyLong_Check(item) || operands->n_counts == COUNTS_MAX)
            return false;
        const long long count = PyLong_AsLongLong(item);
        if ((count == -1 && PyErr_Occurred()) || __builtin_add_overflow(*sum_out, count, sum_out))
            return false;
        operands->counts[operands->n_counts++] = count;
    }
    return true;
}

static bool take_both_counts(plan_key_t *key, operands_t *operands, PyObject *send, PyObject *recv)
{
    int64_t sent;
    if (!take_counts(operands, send, &sent))
        return false;
    const Py_ssize_t n = operands->n_counts;
    if (!take_counts(operands, recv, &operands->rows) || operands->n_counts != 2 * n || operands->rows < 0)
        return false;
    key_add_word(key, (uint64_t)n);
    return true;
}

static void begin(plan_key_t *key, operands_t *operands)
{
    key->overflow = false;
    key->n = key->n_objects = 0;
    operands->copy = NULL;
    operands->n_rest = 0;
    operands->n_counts = 0;
}

/* Rows that are contiguous: the number of them is not in the key, and where there is none strides do not matter. */
static bool has_rows(const tw_tensor_t *view)
{
    return view->ndim == 2 && (!view->strides || view->strides[1] == 1);
}

bool operands_take(const request_t *request, PyObject *options, plan_key_t *key, operands_t *operands)
{
    const bool grouped = request->send != NULL;
    begin(key, operands);
    key_add_option(key, request->name);
    if (grouped && !take_both_counts(key, operands, request->send, request->recv))
        return false;
    if (!view_of(request->x1, request->where, &operands->left) || (grouped && !has_rows(&operands->left)))
        return false;
    key_add_layout(key, &operands->left, grouped ? 1 : 0);
    if (!take_right(key, operands, request->x2, request->where) ||
        !take_rest(key, operands, request->rest, request->where))
        return false;
    key_add_option(key, options);
    return !key->overflow;
}

void operands_end(plan_key_t *key, operands_t *operands)
{
    key_end(key);
    Py_XDECREF(operands->copy);
}
