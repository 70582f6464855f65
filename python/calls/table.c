/* SPDX-License-Identifier: Apache-2.0 */
/* Keys, and the plans that are found by them. */
#include <stdlib.h>
#include <string.h>

#include "calls.h"

enum {
    PLACES = 512,
    PLANS_MAX = PLACES / 2, /* of a communicator; then it begins anew */
};

static const char capsule_name[] = "tilewire.plans";

/* ---- Keys -------------------------------------------------------------------------------------- */

void key_end(plan_key_t *key)
{
    for (int i = 0; i < key->n_objects; i++)
        Py_DECREF(key->objects[i]);
}

void key_add_word(plan_key_t *key, uint64_t word)
{
    if (key->n < WORDS_MAX)
        key->words[key->n++] = word;
    else
        key->overflow = true;
}

static void add_words(plan_key_t *key, const int64_t *words, int from, int to)
{
    for (int i = from; i < to; i++)
        key_add_word(key, (uint64_t)words[i]);
}

void key_add_object(plan_key_t *key, PyObject *object)
{
    if (key->n_objects < OBJECTS_MAX) {
        key->objects[key->n_objects++] = object;
        key_add_word(key, (uint64_t)(uintptr_t)object);
    } else {
        key->overflow = true;
        Py_DECREF(object);
    }
}

/* A number by its value, a string by the one of all that are equal, a tuple by its items, None, truth values and types
 * of elements by themselves. Nothing else: it could change. */
void key_add_option(plan_key_t *key, PyObject *option)
{
    if (PyTuple_CheckExact(option)) {
        const Py_ssize_t n = PyTuple_Size(option);
        key_add_word(key, 't');
        key_add_word(key, (uint64_t)n);
        for (Py_ssize_t i = 0; i < n; i++)
            key_add_option(key, PyTuple_GetItem(option, i));
    } else if (PyLong_CheckExact(option)) {
        int overflow = 0;
        key_add_word(key, 'i');
        key_add_word(key, (uint64_t)PyLong_AsLongLongAndOverflow(option, &overflow));
        key->overflow |= overflow != 0;
    } else {
        Py_INCREF(option);
        if (PyUnicode_CheckExact(option))
            PyUnicode_InternInPlace(&option);
        else if (option != Py_None && !PyBool_Check(option) && (PyObject *)Py_TYPE(option) != calls_given.dtype)
            key->overflow = true;
        key_add_word(key, 'o');
        key_add_object(key, option);
    }
}

void key_add_layout(plan_key_t *key, const tw_tensor_t *view, int from)
{
    uint32_t type = 0;
    memcpy(&type, &view->dtype, sizeof type);
    key_add_word(key, type | (uint64_t)view->ndim << 32);
    add_words(key, view->shape, from, view->ndim);
    if (view->strides)
        add_words(key, view->strides, 0, view->ndim);
}

static uint64_t hash_of(const plan_key_t *key)
{
    uint64_t hash = (uint64_t)key->n;
    for (int i = 0; i < key->n; i++) {
        hash = (hash ^ key->words[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return hash;
}

/* ---- Plans ------------------------------------------------------------------------------------- */

void plan_drop(plan_t *plan)
{
    if (--plan->uses > 0)
        return;
    for (int i = 0; i < plan->n_results; i++)
        Py_XDECREF(plan->results[i].layout);
    Py_XDECREF(plan->kept);
    free(plan);
}

/* ---- The plans of a communicator --------------------------------------------------------------- */

typedef struct entry {
    plan_t *plan;
    uint64_t hash;
    int n, n_objects;
    PyObject *objects[OBJECTS_MAX];
    uint64_t words[];
} entry_t;

struct table {
    int n;
    entry_t *places[PLACES];
};

static void table_clear(table_t *table)
{
    for (int i = 0; i < PLACES; i++) {
        entry_t *entry = table->places[i];
        table->places[i] = NULL;
        if (!entry)
            continue;
        for (int o = 0; o < entry->n_objects; o++)
            Py_DECREF(entry->objects[o]);
        plan_drop(entry->plan);
        free(entry);
    }
    table->n = 0;
}

static void end_capsule(PyObject *capsule)
{
    table_t *table = PyCapsule_GetPointer(capsule, capsule_name);
    if (table) {
        table_clear(table);
        free(table);
    }
}

/* Where the key is, or would be. */
static entry_t *const *place_of(const table_t *table, const plan_key_t *key, uint64_t hash)
{
    for (uint64_t at = hash >> 32;; at++) {
        entry_t *const *place = &table->places[at % PLACES];
        const entry_t *entry = *place;
        if (!entry || (entry->hash == hash && entry->n == key->n &&
                       memcmp(entry->words, key->words, (size_t)key->n * sizeof *key->words) == 0))
            return place;
    }
}

plan_t *table_find(const table_t *table, const plan_key_t *key)
{
    const entry_t *entry = *place_of(table, key, hash_of(key));
    return entry ? entry->plan : NULL;
}

bool table_add(table_t *table, const plan_key_t *key, plan_t *plan)
{
    const uint64_t hash = hash_of(key);
    if (table->n == PLANS_MAX)
        table_clear(table);
    entry_t **place = &table->places[place_of(table, key, hash) - table->places];
    if (*place) {
        plan->uses++;
        plan_drop((*place)->plan);
        (*place)->plan = plan;
        return true;
    }
    entry_t *entry = calloc(1, sizeof *entry + (size_t)key->n * sizeof *entry->words);
    if (!entry)
        return false;
    entry->plan = plan;
    plan->uses++;
    entry->hash = hash;
    entry->n = key->n;
    entry->n_objects = key->n_objects;
    memcpy(entry->words, key->words, (size_t)key->n * sizeof *key->words);
    for (int i = 0; i < key->n_objects; i++) {
        entry->objects[i] = key->objects[i];
        Py_INCREF(entry->objects[i]);
    }
    *place = entry;
    table->n++;
    return true;
}

PyObject *table_new(void)
{
    table_t *table = calloc(1, sizeof *table);
    PyObject *capsule = table ? PyCapsule_New(table, capsule_name, end_capsule) : PyErr_NoMemory();
    if (!capsule)
        free(table);
    return capsule;
}

table_t *table_of(PyObject *comm)
{
    PyObject *capsule = PyObject_GetAttr(comm, calls_names.plans);
    table_t *table = capsule ? PyCapsule_GetPointer(capsule, capsule_name) : NULL;
    Py_XDECREF(capsule); /* the communicator has it */
    return table;
}
