/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that Python calls. */
#include "calls.h" /* Python.h comes before the system's headers */

#include <stdlib.h>
#include <string.h>
#include <time.h>

exchange_t *calls_exchange;
given_t calls_given;
names_t calls_names;

int calls_truth(PyObject *value)
{
    const int is = value ? PyObject_IsTrue(value) : -1;
    Py_XDECREF(value);
    return is;
}

int64_t calls_now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Arguments: comm, name, where, x1, x2, rest, options, perhaps one more, and for grouped operators send, recv. */
static bool read_request(request_t *request, const char *function, PyObject *const *args, Py_ssize_t n, int n_plain)
{
    if (n != n_plain && n != n_plain + 2) {
        PyErr_Format(PyExc_TypeError, "%s takes %d or %d arguments, not %zd", function, n_plain, n_plain + 2, n);
        return false;
    }
    *request = (request_t){
        .comm = args[0], .name = args[1], .x1 = args[3], .x2 = args[4], .rest = args[5], .options = args[6]};
    request->where = (int)PyLong_AsLong(args[2]);
    if (n > n_plain) {
        request->send = args[n_plain];
        request->recv = args[n_plain + 1];
    }
    if (!PyErr_Occurred() && !PyTuple_CheckExact(request->rest))
        PyErr_SetString(PyExc_TypeError, "rest is no tuple");
    return !PyErr_Occurred();
}

/* What keeps a call from the short way is no error: the long way tells. An interrupt is not kept from anybody. */
static PyObject *nothing(void)
{
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return NULL;
    PyErr_Clear();
    Py_RETURN_NONE;
}

static bool is_none(PyObject *value)
{
    Py_XDECREF(value);
    return value == Py_None;
}

/* Whether PyTorch has to see every call, as _watch.py says it; also if that cannot be told. */
static bool is_watching(void)
{
    if (calls_truth(PyObject_CallNoArgs(calls_given.modes)) != 0 ||
        calls_truth(PyObject_CallNoArgs(calls_given.tracing)) != 0 ||
        !is_none(PyObject_CallNoArgs(calls_given.transforms)))
        return true;
    PyObject *level = PyObject_GetAttr(calls_given.forward_ad, calls_names._current_level);
    const bool forward = !level || PyLong_AsLong(level) != -1;
    Py_XDECREF(level);
    return forward || PyErr_Occurred();
}

static PyObject *again(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    request_t request;
    plan_key_t key;
    operands_t operands;
    (void)module;
    if (!read_request(&request, "again", args, n, 7))
        return NULL;
    if (request.where != ANY_CPU && is_watching())
        return nothing();
    const bool known = operands_take(&request, request.options, &key, &operands);
    const table_t *table = known ? table_of(request.comm) : NULL;
    plan_t *plan = table ? table_find(table, &key) : NULL;
    PyObject *got = plan ? plan_run(request.comm, plan, &operands) : nothing();
    operands_end(&key, &operands);
    return got;
}

/* A new use of the plan that a request is known by, or NULL. */
static plan_t *plan_of(const request_t *request)
{
    plan_key_t key;
    operands_t operands;
    const bool known = operands_take(request, request->options, &key, &operands);
    const table_t *table = known ? table_of(request->comm) : NULL;
    plan_t *plan = table ? table_find(table, &key) : NULL;
    if (plan)
        plan->uses++;
    operands_end(&key, &operands);
    return plan;
}

/* Lets a plan be found by a request with these options. */
static void keep(const request_t *request, PyObject *options, plan_t *plan)
{
    plan_key_t key;
    operands_t operands;
    const bool known = operands_take(request, options, &key, &operands);
    table_t *table = known ? table_of(request->comm) : NULL;
    if (table)
        (void)table_add(table, &key, plan); /* without memory the next call is a long one too */
    operands_end(&key, &operands);
}

static PyObject *alias(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    request_t request;
    (void)module;
    if (!read_request(&request, "alias", args, n, 8))
        return NULL;
    plan_t *plan = plan_of(&request);
    if (plan) {
        keep(&request, args[7], plan);
        plan_drop(plan);
    }
    return nothing();
}

static bool read_views(plan_t *plan, PyObject *views)
{
    const Py_ssize_t n = PyTuple_Size(views);
    tw_tensor_t *at[2 + RESTS_MAX];
    if (n < 2 || n > 2 + RESTS_MAX)
        return false;
    for (Py_ssize_t i = 0; i < n; i++)
        at[i] = PyLong_AsVoidPtr(PyTuple_GetItem(views, i));
    plan->left = at[0];
    plan->right = at[1];
    plan->n_rest = (int)n - 2;
    for (int i = 0; i < plan->n_rest; i++)
        plan->rest[i] = at[2 + i];
    return true;
}

static bool read_results(plan_t *plan, PyObject *results)
{
    const Py_ssize_t n = PyTuple_Size(results);
    if (n < 1 || n > RESULTS_MAX)
        return false;
    for (Py_ssize_t i = 0; i < n; i++) {
        result_t *result = &plan->results[plan->n_results];
        PyObject *address, *layout;
        if (!PyArg_ParseTuple(PyTuple_GetItem(results, i), "OO!", &address, &PyTuple_Type, &layout))
            return false;
        result->view = PyLong_AsVoidPtr(address);
        result->layout = layout;
        result->large = PyTuple_Size(layout) > 3;
        Py_INCREF(layout);
        plan->n_results++;
    }
    return true;
}

/* Of a tuple: function, args, views, results, kept, counts, n_counts. */
static plan_t *read_plan(PyObject *what)
{
    PyObject *function, *args, *views, *results, *kept, *counts;
    plan_t *plan = calloc(1, sizeof *plan);
    if (!plan) {
        PyErr_NoMemory();
        return NULL;
    }
    plan->uses = 1;
    if (PyArg_ParseTuple(what, "OOO!O!OOn", &function, &args, &PyTuple_Type, &views, &PyTuple_Type, &results, &kept,
                         &counts, &plan->n_counts) &&
        read_views(plan, views) && read_results(plan, results)) {
        void *address = PyLong_AsVoidPtr(function);
        memcpy(&plan->function, &address, sizeof address);
        plan->args = PyLong_AsVoidPtr(args);
        plan->counts = PyLong_AsVoidPtr(counts);
        plan->kept = kept;
        Py_INCREF(kept);
    }
    if (!PyErr_Occurred() && plan->kept)
        return plan;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a plan has 2 to 10 views and one or two results");
    plan_drop(plan);
    return NULL;
}

static PyObject *remember(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    request_t request;
    (void)module;
    if (!read_request(&request, "remember", args, n, 8))
        return NULL;
    plan_t *plan = read_plan(args[7]);
    if (!plan)
        return NULL;
    keep(&request, request.options, plan);
    plan_drop(plan);
    return nothing();
}

static PyObject *clock_call(PyObject *module, PyObject *function)
{
    (void)module;
    const int64_t start = calls_now_ns();
    PyObject *got = PyObject_CallNoArgs(function);
    const int64_t end = calls_now_ns();
    Py_XDECREF(got);
    return got ? PyLong_FromLongLong(end - start) : NULL;
}

static PyObject *plans(PyObject *module, PyObject *none)
{
    (void)module;
    (void)none;
    return table_new();
}

/* Whether the tensors of this PyTorch can be looked into. */
static bool find_exchange(PyObject *tensor)
{
    PyObject *capsule = PyObject_GetAttrString(tensor, "__dlpack_c_exchange_api__");
    exchange_t *found = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    Py_XDECREF(capsule); /* the table lives as long as the process */
    while (found && found->major > 1)
        found = found->older;
    calls_exchange = found;
    return found && found->major == 1 && found->view;
}

static PyObject *configure(PyObject *module, PyObject *args)
{
#define ADDRESS(name) &calls_given.name,
#define HELD(name) Py_INCREF(calls_given.name);
    (void)module;
    PyObject *start, *wait;
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOOOOnnOO", GIVEN(ADDRESS) & calls_given.plain_elements,
                          &calls_given.least_bytes, &start, &wait))
        return NULL;
    void *addresses[] = {PyLong_AsVoidPtr(start), PyLong_AsVoidPtr(wait)};
    if (PyErr_Occurred())
        return NULL;
    memcpy(&calls_given.op_start, &addresses[0], sizeof addresses[0]);
    memcpy(&calls_given.op_wait, &addresses[1], sizeof addresses[1]);
    GIVEN(HELD) /* for good */
    const bool can = find_exchange(calls_given.tensor);
    PyErr_Clear();
    return PyBool_FromLong(can);
#undef ADDRESS
#undef HELD
}

static PyMethodDef functions[] = {
    {"again", (PyCFunction)(void (*)(void))again, METH_FASTCALL,
     "again(comm, name, where, x1, x2, rest, options[, send, recv]): the result if a plan is known, else None."},
    {"alias", (PyCFunction)(void (*)(void))alias, METH_FASTCALL,
     "alias(comm, name, where, x1, x2, rest, known, options[, send, recv]): one more way to find a plan."},
    {"remember", (PyCFunction)(void (*)(void))remember, METH_FASTCALL,
     "remember(comm, name, where, x1, x2, rest, options, plan[, send, recv]): lets again find a plan, see read_plan."},
    {"clock", clock_call, METH_O, "clock(function): the nanoseconds that a call of it takes, by the clock of C."},
    {"plans", plans, METH_NOARGS, "plans(): room for the plans of a communicator."},
    {"configure", configure, METH_VARARGS, "configure(...): what of Python is needed. False: plans cannot be had."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "tilewire._calls", .m_doc = "Calls like one that was made before.",
    .m_size = -1,          .m_methods = functions,
};

PyMODINIT_FUNC PyInit__calls(void)
{
#define INTERN(name) calls_names.name = PyUnicode_InternFromString(#name);
#define MISSING(name) || !calls_names.name
    NAMES(INTERN)
    if (false NAMES(MISSING))
        return NULL;
    PyObject *module = PyModule_Create(&definition), *type = module ? prepared_type() : NULL;
    const bool added = type && PyModule_AddObjectRef(module, "PreparedBase", type) == 0;
    Py_XDECREF(type);
    if (!added)
        Py_CLEAR(module);
    return module;
}
