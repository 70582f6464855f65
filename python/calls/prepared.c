/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PreparedBase, the part of tilewire.Prepared that has to be quick: its fields, and the call, which starts the operator
 * and waits for it under one lock. prepared.py has the same in Python, for when this extension cannot be had.
 */
#include "calls.h" /* Python.h comes before the system's headers */

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>

typedef struct prepared {
    PyObject base;
    PyObject *comm, *lock;
    PyObject *cell;    /* a list of the tw_op_t pointer, 0 once it is closed; the communicator has it as well */
    PyObject *result;  /* a tensor or a tuple */
    PyObject *written; /* a tuple of those tensors in it that can be saved for a gradient */
    PyObject *tensors; /* and of all whose memory is used, */
    void **places;     /* which has to stay where it was */
    PyObject *weak;
} prepared_t;

typedef struct prepared_run {
    prepared_t *prepared;
    int64_t *ns_out; /* NULL: it is not timed */
} prepared_run_t;

/* The tw_op_t, or NULL with the exception that says why there is none. */
static void *op_of(prepared_t *prepared)
{
    PyObject *number = prepared->cell ? PyList_GetItem(prepared->cell, 0) : NULL;
    void *op = number ? PyLong_AsVoidPtr(number) : NULL;
    if (!op && !PyErr_Occurred())
        Py_XDECREF(PyObject_CallMethodObjArgs((PyObject *)prepared, calls_names.live, NULL));
    if (!op && !PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "a prepared call was not prepared");
    return op;
}

/* Where a tensor's memory is. False: an exception is set. */
static bool find_place(PyObject *tensors, Py_ssize_t i, void **place_out)
{
    tw_tensor_t view;
    PyObject *tensor = PyTuple_GetItem(tensors, i);
    if (!tensor || calls_exchange->view(tensor, &view) != 0)
        return false;
    *place_out = (char *)view.data + view.byte_offset;
    return true;
}

static bool stayed(prepared_t *prepared)
{
    const Py_ssize_t n = PyTuple_Size(prepared->tensors);
    for (Py_ssize_t i = 0; i < n; i++) {
        void *place;
        if (!find_place(prepared->tensors, i, &place))
            return false;
        if (place != prepared->places[i]) {
            Py_XDECREF(PyObject_CallMethod((PyObject *)prepared, "_moved", "n", i)); /* raises: it knows the name */
            return false;
        }
    }
    return true;
}

static int start_and_wait(void *op)
{
    const int status = calls_given.op_start(op);
    return status == TW_OK ? calls_given.op_wait(op, 0) : status;
}

/* With the lock held: until then another thread can close it. */
static bool run_with_lock(void *data, int *status_out)
{
    const prepared_run_t *run = data;
    void *op = op_of(run->prepared);
    if (!op)
        return false;
    PyThreadState *thread = PyEval_SaveThread();
    const int64_t start = run->ns_out ? calls_now_ns() : 0;
    *status_out = start_and_wait(op);
    if (run->ns_out)
        *run->ns_out = calls_now_ns() - start;
    PyEval_RestoreThread(thread);
    return true;
}

/* Tells autograd that the results are written to: saved for a gradient they are no longer what they were. */
static bool mark_written(const prepared_t *prepared)
{
    if (PyTuple_Size(prepared->written) == 0)
        return true;
    PyObject *none = PyObject_CallFunctionObjArgs(calls_given.increment_version, prepared->written, NULL);
    Py_XDECREF(none);
    return none != NULL;
}

static bool can_begin(prepared_t *prepared)
{
    return op_of(prepared) && stayed(prepared) && mark_written(prepared);
}

static bool run_prepared(prepared_t *prepared, int64_t *ns_out)
{
    return can_begin(prepared) && calls_run_locked(prepared->lock, run_with_lock, &(prepared_run_t){prepared, ns_out});
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

static PyObject *prepared_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    prepared_t *prepared = (prepared_t *)self;
    if (PyTuple_Size(args) > 0 || (kwargs && PyDict_Size(kwargs) > 0)) {
        PyErr_SetString(PyExc_TypeError, "a prepared call takes no arguments: it has those that it was prepared with");
        return NULL;
    }
    if (is_traced() || !run_prepared(prepared, NULL))
        return NULL;
    Py_INCREF(prepared->result);
    return prepared->result;
}

static PyObject *begin(PyObject *self, PyObject *none)
{
    (void)none;
    if (!can_begin((prepared_t *)self))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *clocked(PyObject *self, PyObject *none)
{
    int64_t ns = 0;
    (void)none;
    return run_prepared((prepared_t *)self, &ns) ? PyLong_FromLongLong(ns) : NULL;
}

static PyObject *held(PyObject *object)
{
    Py_INCREF(object);
    return object;
}

/* Once: comm, its lock, cell, result, written, tensors. */
static PyObject *fill(PyObject *self, PyObject *args)
{
    prepared_t *prepared = (prepared_t *)self;
    PyObject *comm, *lock, *cell, *result, *written, *tensors;
    if (prepared->cell) {
        PyErr_SetString(PyExc_RuntimeError, "it is filled");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OOO!OO!O!", &comm, &lock, &PyList_Type, &cell, &result, &PyTuple_Type, &written,
                          &PyTuple_Type, &tensors))
        return NULL;
    const Py_ssize_t n = PyTuple_Size(tensors);
    prepared->places = calloc((size_t)n + 1, sizeof *prepared->places);
    if (!prepared->places)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n; i++)
        if (!find_place(tensors, i, &prepared->places[i]))
            return NULL;
    prepared->comm = held(comm);
    prepared->lock = held(lock);
    prepared->result = held(result);
    prepared->written = held(written);
    prepared->tensors = held(tensors);
    prepared->cell = held(cell);
    Py_RETURN_NONE;
}

static int prepared_traverse(PyObject *self, visitproc visit, void *arg)
{
    prepared_t *prepared = (prepared_t *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(prepared->comm);
    Py_VISIT(prepared->lock);
    Py_VISIT(prepared->cell);
    Py_VISIT(prepared->result);
    Py_VISIT(prepared->written);
    Py_VISIT(prepared->tensors);
    return 0;
}

static int prepared_clear(PyObject *self)
{
    prepared_t *prepared = (prepared_t *)self;
    Py_CLEAR(prepared->cell); /* first: without it nothing else is used */
    Py_CLEAR(prepared->comm);
    Py_CLEAR(prepared->lock);
    Py_CLEAR(prepared->result);
    Py_CLEAR(prepared->written);
    Py_CLEAR(prepared->tensors);
    return 0;
}

static void prepared_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release;
    void *slot = PyType_GetSlot(type, Py_tp_free);
    memcpy(&release, &slot, sizeof slot);
    PyObject_GC_UnTrack(self);
    if (((prepared_t *)self)->weak)
        PyObject_ClearWeakRefs(self);
    (void)prepared_clear(self);
    free(((prepared_t *)self)->places);
    release(self);
    Py_DECREF(type);
}

static PyMemberDef prepared_members[] = {
    {"comm", T_OBJECT_EX, offsetof(prepared_t, comm), READONLY, "The communicator."},
    {"lock", T_OBJECT_EX, offsetof(prepared_t, lock), READONLY, "Its lock."},
    {"cell", T_OBJECT, offsetof(prepared_t, cell), READONLY, "A list of the tw_op_t pointer, 0 once closed."},
    {"result", T_OBJECT, offsetof(prepared_t, result), READONLY, "What the operator gives, a tensor or a tuple."},
    {"written", T_OBJECT, offsetof(prepared_t, written), READONLY,
     "Those tensors in it that can be saved for a gradient."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(prepared_t, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef prepared_methods[] = {
    {"clocked", clocked, METH_NOARGS, "Runs the operator; nanoseconds from before its start to after its wait, in C."},
    {"_begin", begin, METH_NOARGS, "What has to be looked at before a start."},
    {"_fill", fill, METH_VARARGS, "_fill(comm, lock, cell, result, written, tensors): once."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot prepared_slots[] = {
    {Py_tp_call, prepared_call},
    {Py_tp_traverse, prepared_traverse},
    {Py_tp_clear, prepared_clear},
    {Py_tp_dealloc, prepared_dealloc},
    {Py_tp_members, prepared_members},
    {Py_tp_methods, prepared_methods},
    {0, NULL},
};

static PyType_Spec prepared_spec = {
    .name = "tilewire._calls.PreparedBase",
    .basicsize = sizeof(prepared_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = prepared_slots,
};

PyObject *prepared_type(void)
{
    return PyType_FromSpec(&prepared_spec);
}
