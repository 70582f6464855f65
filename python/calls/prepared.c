/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PreparedBase, the part of tilewire.Prepared that has to be quick: its fields, and the call, which starts the operator
 * and waits for it under one lock. prepared.py has the same in Python, for when this extension cannot be had.
 */
#include "calls.h" /* Python.h comes before the system's headers */

#include <stddef.h>
#include <string.h>
#include <structmember.h>

typedef struct prepared {
    PyObject base;
    unsigned long long op; /* the tw_op_t, 0 once it is closed */
    PyObject *comm, *lock, *result;
    PyObject *written; /* a tuple: tensors whose version counters stand for the results */
    PyObject *weak;
} prepared_t;

typedef struct prepared_run {
    prepared_t *prepared;
    int64_t *ns_out; /* NULL: it is not timed */
} prepared_run_t;

/* Raises what is the matter with a call that is closed. */
static bool is_live(prepared_t *prepared)
{
    if (prepared->op)
        return true;
    Py_XDECREF(PyObject_CallMethodObjArgs((PyObject *)prepared, calls_names.live, NULL));
    return false;
}

static int start_and_wait(void *op)
{
    const int status = calls_given.op_start(op);
    return status == TW_OK ? calls_given.op_wait(op, 0) : status;
}

/* With the lock held: until then another thread can close it. */
static bool run_prepared(void *data, int *status_out)
{
    const prepared_run_t *run = data;
    if (!is_live(run->prepared))
        return false;
    void *op = (void *)(uintptr_t)run->prepared->op;
    PyThreadState *thread = PyEval_SaveThread();
    const int64_t start = run->ns_out ? calls_now_ns() : 0;
    *status_out = start_and_wait(op);
    if (run->ns_out)
        *run->ns_out = calls_now_ns() - start;
    PyEval_RestoreThread(thread);
    return true;
}

static bool run(prepared_t *prepared, int64_t *ns_out)
{
    return is_live(prepared) && calls_run_locked(prepared->lock, run_prepared, &(prepared_run_t){prepared, ns_out});
}

/* Tells autograd that the results were written to: saved for a gradient they are no longer what they were. */
static bool mark_written(prepared_t *prepared)
{
    if (!prepared->written || PyTuple_Size(prepared->written) <= 0)
        return !PyErr_Occurred();
    const int grad = calls_truth(PyObject_CallNoArgs(calls_given.grad_enabled));
    if (grad <= 0)
        return grad == 0;
    PyObject *none = PyObject_CallFunctionObjArgs(calls_given.increment_version, prepared->written, NULL);
    Py_XDECREF(none);
    return none != NULL;
}

/* Whether the results would be taken for constants, as prepared.py asks it; also if that cannot be told. */
static bool is_traced(void)
{
    if (calls_truth(PyObject_CallNoArgs(calls_given.modes)) == 0 &&
        calls_truth(PyObject_CallNoArgs(calls_given.tracing)) == 0)
        return false;
    PyErr_Clear();
    PyErr_SetString(PyExc_RuntimeError, "a prepared call cannot be traced: call the operator itself");
    return true;
}

static PyObject *call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    prepared_t *prepared = (prepared_t *)self;
    if (PyTuple_Size(args) > 0 || (kwargs && PyDict_Size(kwargs) > 0)) {
        PyErr_SetString(PyExc_TypeError, "a prepared call takes no arguments: it has those that it was prepared with");
        return NULL;
    }
    if (is_traced() || !run(prepared, NULL) || !mark_written(prepared))
        return NULL;
    PyObject *result = prepared->result ? prepared->result : Py_None;
    Py_INCREF(result);
    return result;
}

static PyObject *clocked(PyObject *self, PyObject *none)
{
    int64_t ns = 0;
    (void)none;
    return run((prepared_t *)self, &ns) ? PyLong_FromLongLong(ns) : NULL;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    prepared_t *prepared = (prepared_t *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(prepared->comm);
    Py_VISIT(prepared->lock);
    Py_VISIT(prepared->result);
    Py_VISIT(prepared->written);
    return 0;
}

static int clear(PyObject *self)
{
    prepared_t *prepared = (prepared_t *)self;
    Py_CLEAR(prepared->comm);
    Py_CLEAR(prepared->lock);
    Py_CLEAR(prepared->result);
    Py_CLEAR(prepared->written);
    return 0;
}

static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release;
    void *slot = PyType_GetSlot(type, Py_tp_free);
    memcpy(&release, &slot, sizeof slot);
    PyObject_GC_UnTrack(self);
    if (((prepared_t *)self)->weak)
        PyObject_ClearWeakRefs(self);
    (void)clear(self);
    release(self);
    Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"op", T_ULONGLONG, offsetof(prepared_t, op), 0, "The tw_op_t pointer, 0 once closed."},
    {"comm", T_OBJECT_EX, offsetof(prepared_t, comm), 0, "The communicator."},
    {"lock", T_OBJECT_EX, offsetof(prepared_t, lock), 0, "The communicator's lock."},
    {"result", T_OBJECT, offsetof(prepared_t, result), 0, "What the operator gives, a tensor or a tuple."},
    {"written", T_OBJECT, offsetof(prepared_t, written), 0, "Tensors whose version counters stand for the results."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(prepared_t, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef methods[] = {
    {"clocked", clocked, METH_NOARGS, "Runs the operator; nanoseconds from before its start to after its wait, in C."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_call, call},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "tilewire._calls.PreparedBase",
    .basicsize = sizeof(prepared_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

PyObject *prepared_type(void)
{
    return PyType_FromSpec(&spec);
}
