/* SPDX-License-Identifier: Apache-2.0 */
/* Running operators: the communicator's lock, and a call by a plan: new results, addresses in the struct. */
#include <limits.h>
#include <string.h>

#include "calls.h"

static PyObject *make_tensor(PyObject *comm, PyObject *layout, bool large)
{
    if (!large)
        return PyObject_CallObject(calls_given.empty, layout);
    PyObject *results = PyObject_GetAttr(comm, calls_names.results);
    PyObject *make = results ? PyObject_GetAttr(results, calls_names.make) : NULL;
    PyObject *made = make ? PyObject_CallObject(make, layout) : NULL;
    Py_XDECREF(make);
    Py_XDECREF(results);
    return made;
}

/* A result with as many rows as come. */
static PyObject *make_rows(PyObject *comm, const result_t *result, int64_t rows)
{
    PyObject *strides = PyTuple_GetItem(result->layout, 1), *dtype = PyTuple_GetItem(result->layout, 2);
    const int64_t width = result->view->shape[1];
    long long bytes;
    if (__builtin_mul_overflow(rows, width * (result->view->dtype.bits / 8), &bytes))
        bytes = LLONG_MAX; /* which nobody has: PyTorch says so */
    const bool large = bytes >= calls_given.least_bytes;
    PyObject *layout = large ? Py_BuildValue("((LL)OOL)", (long long)rows, (long long)width, strides, dtype, bytes)
                             : Py_BuildValue("((LL)OO)", (long long)rows, (long long)width, strides, dtype);
    PyObject *made = layout ? make_tensor(comm, layout, large) : NULL;
    Py_XDECREF(layout);
    result->view->shape[0] = rows;
    return made;
}

static bool make_results(PyObject *comm, const plan_t *plan, const operands_t *operands, PyObject **results)
{
    for (int i = 0; i < plan->n_results; i++) {
        const result_t *result = &plan->results[i];
        tw_tensor_t made;
        results[i] =
            plan->counts ? make_rows(comm, result, operands->rows) : make_tensor(comm, result->layout, result->large);
        if (!results[i] || calls_exchange->view(results[i], &made) != 0)
            return false;
        result->view->data = (char *)made.data + made.byte_offset;
    }
    return true;
}

static void place(const plan_t *plan, const operands_t *operands)
{
    plan->left->data = operands->left.data;
    if (plan->right)
        plan->right->data = operands->right.data;
    for (int i = 0; i < plan->n_rest; i++)
        plan->rest[i]->data = operands->rest[i].data;
    if (!plan->counts)
        return;
    plan->left->shape[0] = operands->left.shape[0];
    if (operands->left.strides)
        memcpy(plan->left->strides, operands->left.strides, 2 * sizeof *plan->left->strides);
    memcpy(plan->counts, operands->counts, (size_t)plan->n_counts * sizeof *plan->counts);
}

/* The communicator's, or NULL with the exception that says why there is none. */
static void *handle_of(PyObject *comm)
{
    PyObject *number = PyObject_GetAttr(comm, calls_names.handle);
    void *handle = number ? PyLong_AsVoidPtr(number) : NULL;
    Py_XDECREF(number);
    if (!handle && !PyErr_Occurred())
        Py_XDECREF(PyObject_CallMethodObjArgs(comm, calls_names.live, NULL));
    return handle;
}

typedef struct plan_work {
    PyObject *comm;
    const plan_t *plan;
    const operands_t *operands;
    PyObject **results;
} plan_work_t;

/* Results and addresses, and the operator. No garbage is collected meanwhile, whose finalizers could want the lock. */
static bool run_plan(void *data, int *status_out)
{
    const plan_work_t *work = data;
    const int collects = PyGC_Disable();
    void *handle = make_results(work->comm, work->plan, work->operands, work->results) ? handle_of(work->comm) : NULL;
    if (collects)
        (void)PyGC_Enable();
    if (!handle)
        return false;
    place(work->plan, work->operands);
    PyThreadState *thread = PyEval_SaveThread();
    *status_out = work->plan->function(handle, work->plan->args);
    PyEval_RestoreThread(thread);
    return true;
}

/* Gives the lock back, whatever happened. */
static bool release(PyObject *lock)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *none = PyObject_CallMethodObjArgs(lock, calls_names.release, NULL);
    const bool released = none != NULL;
    Py_XDECREF(none);
    if (type)
        PyErr_Restore(type, value, trace);
    return released;
}

/* Raises what a status stands for. */
static bool succeeded(int status)
{
    if (status == TW_OK)
        return true;
    PyObject *none = PyObject_CallFunction(calls_given.check, "i", status);
    if (none)
        PyErr_Format(PyExc_RuntimeError, "status %d was not raised", status);
    Py_XDECREF(none);
    return false;
}

bool calls_run_locked(PyObject *lock, locked_fn *work, void *data)
{
    int status = TW_OK;
    const bool held = calls_truth(PyObject_CallMethodObjArgs(lock, calls_names.acquire, NULL)) > 0;
    const bool ran = held && work(data, &status);
    const bool released = held && release(lock);
    return ran && released && succeeded(status);
}

/* One result as it is, two in a tuple; what is grouped always in a tuple. */
static PyObject *answer(const plan_t *plan, PyObject **results)
{
    PyObject *one = results[0], *two = results[1];
    if (plan->n_results == 1 && !plan->counts)
        return one;
    PyObject *both = PyTuple_Pack(2, one, two ? two : Py_None);
    Py_DECREF(one);
    Py_XDECREF(two);
    return both;
}

PyObject *plan_run(PyObject *comm, plan_t *plan, const operands_t *operands)
{
    PyObject *results[RESULTS_MAX] = {NULL};
    plan->uses++; /* others may clear the table while we run */
    PyObject *lock = PyObject_GetAttr(comm, calls_names.lock);
    const bool ran = lock && calls_run_locked(lock, run_plan, &(plan_work_t){comm, plan, operands, results});
    Py_XDECREF(lock);
    PyObject *got = ran ? answer(plan, results) : NULL;
    for (int i = 0; !ran && i < RESULTS_MAX; i++)
        Py_XDECREF(results[i]);
    plan_drop(plan);
    return got;
}
