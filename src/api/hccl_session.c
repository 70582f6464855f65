/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts and sessions: who posts, which handle comes next, and how a session ends. */
#include "api/hccl_session.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"

#define NAP_NS 5000000u /* between looks of a core that waits for the poster */

/* ---- Contexts ---- */

static tw_status_t create_one(tw_comm_t *comm, tw_hccl_context_t **out)
{
    tw_hccl_context_t *context = calloc(1, sizeof *context);
    if (!context)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for a context");
    context->comm = comm;
    (void)pthread_mutex_init(&context->lock, NULL);
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&context->posted, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    *out = context;
    return TW_OK;
}

static void destroy_one(tw_hccl_context_t *context)
{
    if (!context)
        return;
    if (context->attached > 0)
        TWI_LOG(WARN, "hccl", "context destroyed while %d cores use it", context->attached);
    if (context->open)
        (void)twi_hccl_end_session(context, true);
    while (context->cores) {
        twi_hccl_core_state_t *core = context->cores;
        context->cores = core->next;
        free(core);
    }
    (void)pthread_cond_destroy(&context->posted);
    (void)pthread_mutex_destroy(&context->lock);
    free(context->groups);
    free(context);
}

tw_status_t tw_hccl_contexts_create(tw_comm_t *const *groups, uint32_t n_groups, tw_hccl_context_t **contexts_out)
{
    TW_REQUIRE(groups, "groups is NULL");
    TW_REQUIRE(contexts_out, "contexts_out is NULL");
    TW_REQUIRE(n_groups >= 1 && n_groups <= INT8_MAX, "n_groups %u, must be 1..127", n_groups);
    for (uint32_t i = 0; i < n_groups; i++)
        TW_REQUIRE(groups[i], "groups[%u] is NULL", i);
    tw_hccl_context_t **made = calloc(n_groups, sizeof(tw_hccl_context_t *));
    tw_status_t status = made ? TW_OK : twi_fail(TW_ERR_NO_MEMORY, "no memory for %u contexts", n_groups);
    for (uint32_t i = 0; i < n_groups && status == TW_OK; i++)
        status = create_one(groups[i], &made[i]);
    for (uint32_t i = 0; i < n_groups && status == TW_OK; i++) {
        made[i]->group = i;
        made[i]->n_groups = n_groups;
        made[i]->groups = malloc(n_groups * sizeof(tw_hccl_context_t *));
        if (made[i]->groups)
            memcpy(made[i]->groups, made, n_groups * sizeof(tw_hccl_context_t *));
        else
            status = twi_fail(TW_ERR_NO_MEMORY, "no memory for %u contexts", n_groups);
    }
    for (uint32_t i = 0; made && i < n_groups; i++) {
        if (status == TW_OK)
            contexts_out[i] = made[i];
        else
            destroy_one(made[i]);
    }
    free(made);
    return status;
}

void tw_hccl_contexts_destroy(tw_hccl_context_t **contexts, uint32_t n_groups)
{
    for (uint32_t i = 0; contexts && i < n_groups; i++) {
        destroy_one(contexts[i]);
        contexts[i] = NULL;
    }
}

/* ---- Joining and leaving ---- */

static void reset(tw_hccl_context_t *context)
{
    for (twi_hccl_core_state_t *core = context->cores; core; core = core->next) {
        core->n_counted = 0;
        core->n_handles = 0;
    }
    context->n_tasks = 0;
    context->owner = TW_HCCL_CORE_DEFAULT;
    context->finalized = false;
    context->open = true;
}

static twi_hccl_core_state_t *core_state(tw_hccl_context_t *context, const tw_hccl_core_t *core)
{
    twi_hccl_core_state_t *state = context->cores;
    while (state && !(state->type == core->type && state->block == core->block))
        state = state->next;
    if (!state && (state = calloc(1, sizeof *state))) {
        state->type = core->type;
        state->block = core->block;
        state->next = context->cores;
        context->cores = state;
    }
    return state;
}

tw_status_t twi_hccl_attach(tw_hccl_t *hccl, tw_hccl_context_t *context)
{
    (void)pthread_mutex_lock(&context->lock);
    if (!context->open || (context->finalized && context->attached == 0)) {
        int none = 0;
        if (!atomic_compare_exchange_strong(&context->comm->sessions, &none, 1)) {
            (void)pthread_mutex_unlock(&context->lock);
            return twi_fail(TW_ERR_STATE, "communicator '%s' has an open session in another context",
                            tw_comm_name(context->comm));
        }
        reset(context);
    }
    hccl->state = core_state(context, &hccl->core);
    if (hccl->state) {
        hccl->context = context;
        context->attached++;
    }
    (void)pthread_mutex_unlock(&context->lock);
    return hccl->state ? TW_OK : twi_fail(TW_ERR_NO_MEMORY, "no memory for the state of a core");
}

void twi_hccl_detach(tw_hccl_t *hccl)
{
    (void)pthread_mutex_lock(&hccl->context->lock);
    hccl->context->attached--;
    (void)pthread_mutex_unlock(&hccl->context->lock);
}

/* ---- Preparing ---- */

tw_status_t twi_hccl_may_prepare(const tw_hccl_t *hccl)
{
    const int owner = atomic_load_explicit(&hccl->context->owner, memory_order_relaxed);
    if (hccl->core.poster_type != TW_HCCL_CORE_DEFAULT || owner == TW_HCCL_CORE_DEFAULT ||
        owner == (int)hccl->core.type)
        return TW_OK;
    return twi_fail(TW_ERR_STATE, "the other core type prepares the tasks of this session (no config was given)");
}

/* The first core type whose Prepare is accepted owns the session. */
static tw_status_t claim_session(const tw_hccl_t *hccl)
{
    int nobody = TW_HCCL_CORE_DEFAULT;
    if (hccl->core.poster_type == TW_HCCL_CORE_DEFAULT &&
        atomic_load_explicit(&hccl->context->owner, memory_order_relaxed) == nobody)
        (void)atomic_compare_exchange_strong(&hccl->context->owner, &nobody, (int)hccl->core.type);
    return twi_hccl_may_prepare(hccl);
}

static bool posts(const tw_hccl_t *hccl)
{
    const tw_hccl_core_t *core = &hccl->core;
    return (core->poster_type == TW_HCCL_CORE_DEFAULT || core->type == core->poster_type) &&
           core->block == core->poster_block;
}

static tw_status_t post_gate(tw_hccl_context_t *context, const twi_hccl_post_t *post)
{
    tw_hccl_context_t *source = post->gate;
    TW_REQUIRE(post->gate_handle >= 0 && (uint32_t)post->gate_handle < atomic_load(&source->n_tasks),
               "src %d is not a task of group %u", post->gate_handle, source->group);
    return twi_engine_post_gate(context->comm->engine, source->comm->engine, source->numbers[post->gate_handle]);
}

/* Wakes cores that wait for the poster. No fence: a core that is missed looks again after NAP_NS. */
static void tell_cores(tw_hccl_context_t *context)
{
    if (atomic_load_explicit(&context->waiters, memory_order_relaxed) == 0)
        return;
    (void)pthread_mutex_lock(&context->lock);
    (void)pthread_cond_broadcast(&context->posted);
    (void)pthread_mutex_unlock(&context->lock);
}

static tw_status_t post_task(tw_hccl_context_t *context, const twi_hccl_post_t *post)
{
    twi_engine_t *engine = context->comm->engine;
    uint64_t number;
    if (post->task)
        TW_TRY(twi_engine_post(engine, post->task, &number));
    else
        TW_TRY(twi_engine_post_local(engine, post->run, post->arg, &number));
    const uint32_t h = atomic_load_explicit(&context->n_tasks, memory_order_relaxed);
    context->numbers[h] = number;
    context->repeat[h] = (uint8_t)post->repeat;
    context->committed[h] = post->commit ? (uint8_t)post->repeat : 0;
    atomic_store_explicit(&context->n_tasks, h + 1, memory_order_release);
    tell_cores(context);
    if (!post->task)
        (void)twi_engine_query(engine, number); /* run it now if its turn has come */
    return TW_OK;
}

/* Whether the call counts against the limit: under a2 only Prepare does. */
static bool counts(const tw_hccl_t *hccl, const twi_hccl_post_t *post)
{
    return !post->counts_only || hccl->context->comm->profile != TW_PROFILE_A2;
}

/* The checks and the engine's part; every core counts alike, only the poster reaches the engine. */
static tw_status_t post_checked(tw_hccl_t *hccl, const twi_hccl_post_t *post, bool *taken)
{
    tw_hccl_context_t *context = hccl->context;
    if (hccl->state->n_counted >= TW_HCCL_MAX_TASKS && counts(hccl, post))
        return twi_fail(TW_ERR_STATE, "more than %d tasks between InitV2 and Finalize", TW_HCCL_MAX_TASKS);
    if (atomic_load_explicit(&context->finalized, memory_order_acquire))
        return twi_fail(TW_ERR_STATE, "the session has been finalized");
    TW_TRY(claim_session(hccl));
    if (!posts(hccl))
        return TW_OK;
    if (post->counts_only)
        return post_gate(context, post);
    const tw_status_t status = post_task(context, post);
    *taken = status == TW_OK;
    return status;
}

tw_hccl_handle_t twi_hccl_post(tw_hccl_t *hccl, const twi_hccl_post_t *post)
{
    twi_hccl_core_state_t *state = hccl->state;
    bool taken = false;
    const tw_status_t status = post_checked(hccl, post, &taken);
    if (!taken)
        free(post->arg);
    if (status != TW_OK)
        return TW_HCCL_INVALID;
    state->n_counted += counts(hccl, post);
    if (post->counts_only)
        return 0;
    const uint32_t h = state->n_handles++;
    state->repeat[h] = (uint8_t)post->repeat;
    state->committed[h] = post->commit ? (uint8_t)post->repeat : 0;
    state->waited[h] = 0;
    return (tw_hccl_handle_t)h;
}

/* ---- Commit, wait, query ---- */

static bool valid(const tw_hccl_t *hccl, tw_hccl_handle_t handle)
{
    return hccl && hccl->phase == TWI_HCCL_READY && handle >= 0 && (uint32_t)handle < hccl->state->n_handles;
}

void tw_hccl_commit(tw_hccl_t *hccl, tw_hccl_handle_t handle)
{
    if (!valid(hccl, handle)) {
        TWI_LOG(DEBUG, "hccl", "commit of handle %d ignored: no such task", handle);
        return;
    }
    tw_hccl_context_t *context = hccl->context;
    twi_hccl_core_state_t *state = hccl->state;
    if (state->committed[handle] >= state->repeat[handle]) {
        TWI_LOG(DEBUG, "hccl", "commit of handle %d ignored: all %d rounds are committed", handle,
                state->repeat[handle]);
        return;
    }
    state->committed[handle]++;
    if (posts(hccl)) {
        context->committed[handle]++;
        twi_engine_commit(context->comm->engine, context->numbers[handle], 1);
    }
}

/* A core that does not post may be ahead of the one that does. */
static tw_status_t await_post(tw_hccl_context_t *context, tw_hccl_handle_t handle)
{
    if ((uint32_t)handle < atomic_load_explicit(&context->n_tasks, memory_order_acquire))
        return TW_OK;
    const uint64_t deadline = twi_now_ns() + context->comm->transport->enter_timeout_ns;
    tw_status_t status = TW_OK;
    (void)atomic_fetch_add(&context->waiters, 1);
    (void)pthread_mutex_lock(&context->lock);
    while (status == TW_OK && (uint32_t)handle >= atomic_load(&context->n_tasks)) {
        const uint64_t now = twi_now_ns();
        const uint64_t wake = now + NAP_NS;
        const struct timespec at = {.tv_sec = (time_t)(wake / 1000000000u), .tv_nsec = (long)(wake % 1000000000u)};
        if (atomic_load(&context->finalized))
            status = twi_fail(TW_ERR_STATE, "handle %d: the session ended before the task was posted", handle);
        else if (now >= deadline)
            status = twi_fail(TW_ERR_TIMEOUT, "handle %d: the posting core did not prepare it in time", handle);
        else
            (void)pthread_cond_timedwait(&context->posted, &context->lock, &at);
    }
    (void)pthread_mutex_unlock(&context->lock);
    (void)atomic_fetch_sub(&context->waiters, 1);
    return status;
}

int32_t tw_hccl_wait(tw_hccl_t *hccl, tw_hccl_handle_t handle)
{
    if (!valid(hccl, handle)) {
        (void)twi_fail(TW_ERR_ARGUMENT, "handle %d is not a task of this core", handle);
        return TW_HCCL_FAILED;
    }
    twi_hccl_core_state_t *state = hccl->state;
    if (state->waited[handle] >= state->committed[handle]) {
        (void)twi_fail(TW_ERR_STATE, "handle %d: %d rounds committed, %d waited for", handle, state->committed[handle],
                       state->waited[handle]);
        return TW_HCCL_FAILED;
    }
    tw_hccl_context_t *context = hccl->context;
    if (await_post(context, handle) != TW_OK ||
        twi_engine_wait(context->comm->engine, context->numbers[handle], (uint32_t)state->waited[handle] + 1) != TW_OK)
        return TW_HCCL_FAILED;
    state->waited[handle]++;
    return TW_HCCL_SUCCESS;
}

int32_t tw_hccl_query(tw_hccl_t *hccl, tw_hccl_handle_t handle)
{
    if (hccl && hccl->phase == TWI_HCCL_FINALIZED)
        return 0;
    if (!valid(hccl, handle)) {
        (void)twi_fail(TW_ERR_ARGUMENT, "handle %d is not a task of this core", handle);
        return TW_HCCL_FAILED;
    }
    tw_hccl_context_t *context = hccl->context;
    const bool posted = (uint32_t)handle < atomic_load_explicit(&context->n_tasks, memory_order_acquire);
    const int64_t rounds = posted ? twi_engine_query(context->comm->engine, context->numbers[handle]) : 0;
    return rounds < 0 ? TW_HCCL_FAILED : (int32_t)rounds;
}

/* ---- The end ---- */

tw_status_t twi_hccl_end_session(tw_hccl_context_t *context, bool sync)
{
    twi_engine_t *engine = context->comm->engine;
    tw_status_t status = TW_OK;
    (void)pthread_mutex_lock(&context->lock);
    const bool first = context->open && !atomic_exchange(&context->finalized, true); /* no more Prepare */
    const uint32_t n = first ? atomic_load(&context->n_tasks) : 0;
    (void)pthread_cond_broadcast(&context->posted);
    (void)pthread_mutex_unlock(&context->lock);
    for (uint32_t i = 0; i < n; i++) {
        if (context->committed[i] == context->repeat[i])
            continue;
        TWI_LOG(WARN, "hccl", "finalize: task %u has %d of %d rounds committed; the rest is cancelled", i,
                context->committed[i], context->repeat[i]);
        twi_engine_cancel(engine, context->numbers[i]);
    }
    const bool wait = sync || twi_engine_gated(engine); /* what waits for another group must not outlive it */
    for (uint32_t i = 0; i < n && wait; i++) {
        const tw_status_t waited =
            context->committed[i] ? twi_engine_wait(engine, context->numbers[i], context->committed[i]) : TW_OK;
        status = status == TW_OK ? waited : status;
    }
    if (first) {
        twi_engine_forget_gates(engine);
        atomic_store(&context->comm->sessions, 0);
    }
    return status;
}

/* Whether Finalize of this object ends the session: the poster's does. */
static bool ends_session(const tw_hccl_t *hccl)
{
    const int owner = atomic_load(&hccl->context->owner);
    return posts(hccl) && (hccl->core.poster_type != TW_HCCL_CORE_DEFAULT || owner == TW_HCCL_CORE_DEFAULT ||
                           owner == (int)hccl->core.type);
}

int32_t tw_hccl_finalize(tw_hccl_t *hccl, int32_t sync)
{
    if (!hccl || hccl->phase != TWI_HCCL_READY)
        return TW_HCCL_SUCCESS;
    const tw_status_t status = ends_session(hccl) ? twi_hccl_end_session(hccl->context, sync != 0) : TW_OK;
    hccl->phase = TWI_HCCL_FINALIZED;
    twi_hccl_detach(hccl);
    return status == TW_OK ? TW_HCCL_SUCCESS : TW_HCCL_FAILED;
}
