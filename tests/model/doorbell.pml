/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The doorbell of src/transport/bell.h, in both its forms, and the loop of src/transport/wait.c, under
 * store buffers: no wakeup is ever lost.
 *
 * Each of W ranks publishes R epochs and waits for each epoch of all the others. It is Dekker's pattern:
 *
 *     signaller:  ready = e + 1;  fence;  if (sleeping) { bell++; futex_wake }
 *     waiter:     seen = bell;  sleeping++;  fence;  if (!cond) futex_wait(bell, seen);  sleeping--
 *
 * A load may overtake an earlier store, so without both fences each side may miss the other's store.
 * A store goes to the thread's store buffer and reaches memory when drain() moves it. So do the changes
 * of sleeping: x86 would not let a load pass them, but the fence is there for machines that do.
 * The buffer has one entry, which is enough: stores stay in order among themselves, and an older one
 * still waiting could only hold back what this one already holds back. A fence, and bell++ because of
 * its release, waits until the own buffer is empty. No sleep times out here.
 *
 * In the other form the signaller has no fence, and the waiter's is followed by membarrier(2): each other
 * thread empties its store buffer at some moment between call and return, in any order. Without a fence
 * two stores of a thread may be on their way, so the buffer has two entries there.
 *
 * Settings: -DW=2|3 -DR=n, -DTHREADS (two threads of rank 0 wait, on the same bell and count),
 * -DABORT (a rank may abort instead of publishing), -DREMOTE_BARRIER (the other form), -DBUG_x as in
 * epoch.pml.
 */
#ifndef W
#define W 2
#endif
#ifndef R
#define R 3
#endif
#define COVER(x) true                      /* see scripts/check_model.sh */

#ifdef THREADS
#define T 3
#define RANK(t) ((t) / 2)                  /* thread 1 only waits */
#else
#define T W
#define RANK(t) (t)
#endif
#define OWN RANK(me)

#if W == 2
#define ALL(p) (p(0) && p(1))
#else
#define ALL(p) (p(0) && p(1) && p(2))
#endif
#define READY(q) (q == OWN || ready[q] > e)
#define ALIVE(q) (q == OWN || !gone[q])
#define FIRST    (OWN == 0 -> 1 : 0)       /* the peers in order: i = FIRST; i < W; i = NEXT */
#define NEXT     (i + 1 == OWN -> i + 2 : i + 1)

byte ready[W], bell[W], sleeping[W];
bool gone[W];
bool queued[T];                            /* in the kernel's queue for the bell of its rank */

#define EMPTY 0
#define TO_READY 1
#define TO_GONE 2
#define ASLEEP 3                           /* sleeping++ */
#define AWAKE 4                            /* sleeping-- */
byte buffer[T], value[T];                  /* the store buffer of each thread */

inline fence() { buffer[me] == EMPTY }

#ifndef REMOTE_BARRIER
inline store(to, v) { atomic { buffer[me] == EMPTY -> buffer[me] = to; value[me] = v } }
inline next_entry() { buffer[me] = EMPTY; value[me] = 0 }
#else
byte buffer2[T], value2[T];                /* the younger entry */
inline store(to, v)
{
    if
    :: atomic { buffer[me] == EMPTY -> buffer[me] = to; value[me] = v }
    :: atomic { buffer[me] != EMPTY && buffer2[me] == EMPTY -> buffer2[me] = to; value2[me] = v }
    fi
}
inline next_entry()
{
    buffer[me] = buffer2[me]; value[me] = value2[me]; buffer2[me] = EMPTY; value2[me] = 0
}
#define DRAINED(t) (1 << (t))              /* bits of i, which is free while a rank waits */
inline membarrier()
{
    do
    :: atomic { !(i & DRAINED(0)) && buffer[0] == EMPTY -> i = i | DRAINED(0) }
    :: atomic { !(i & DRAINED(1)) && buffer[1] == EMPTY -> i = i | DRAINED(1) }
#if T == 3
    :: atomic { !(i & DRAINED(2)) && buffer[2] == EMPTY -> i = i | DRAINED(2) }
#endif
    :: atomic { i == DRAINED(T) - 1 -> i = 0; break }
    od
}
#endif

#ifdef BUG_FLAG
#define COUNT(n) sleeping[OWN] = (n > 0 -> 1 : 0)
#else
#define COUNT(n) sleeping[OWN] = sleeping[OWN] + n
#endif

proctype drain(byte me)
{
end:
    do
    :: d_step { buffer[me] == TO_READY -> ready[OWN] = value[me]; next_entry() }
    :: d_step { buffer[me] == TO_GONE -> gone[OWN] = 1; next_entry() }
    :: d_step { buffer[me] == ASLEEP -> COUNT(1); next_entry() }
    :: d_step { buffer[me] == AWAKE -> COUNT(-1); next_entry() }
    od
}

/* Wake all threads of rank i, or any one of them. */
inline futex_wake()
{
#ifndef THREADS
    queued[i] = 0
#else
    if
#ifdef BUG_WAKE_ONE
    :: i == 0 && queued[0] -> queued[0] = 0
    :: i == 0 && queued[1] -> queued[1] = 0
    :: i == 0 && !queued[0] && !queued[1]
#else
    :: i == 0 -> queued[0] = 0; queued[1] = 0
#endif
    :: i == 1 -> queued[2] = 0
    fi
#endif
}

inline signal()
{
#if !defined(BUG_WEAK_SIGNAL) && !defined(REMOTE_BARRIER)
    fence();
#endif
    i = FIRST;
    do
    :: i < W && sleeping[i] ->
#ifndef BUG_NO_BELL
        atomic { buffer[me] == EMPTY -> bell[i]++ };
#endif
        atomic { futex_wake(); i = NEXT }
    :: atomic { i < W && !sleeping[i] -> i = NEXT }
    :: i >= W -> break
    od;
    i = 0
}

inline await(cond)
{
    do
    :: cond -> break
    :: !(cond) && !ALL(ALIVE) -> goto stop
    :: !(cond) && ALL(ALIVE) ->
#if !defined(BUG_LATE_BELL) && !defined(BUG_STALE_BELL)
        seen = bell[OWN];
#endif
#ifdef BUG_EARLY_MEMBARRIER
        membarrier();
#endif
        store(ASLEEP, 0);
#ifndef BUG_WEAK_ORDER
        fence();
#endif
#if defined(REMOTE_BARRIER) && !defined(BUG_NO_MEMBARRIER) && !defined(BUG_EARLY_MEMBARRIER)
        membarrier();
#endif
        if
#ifndef BUG_NO_RECHECK
        :: (cond) || !ALL(ALIVE)
        :: !(cond) && ALL(ALIVE) ->
#else
        :: true ->
#endif
#ifdef BUG_LATE_BELL
            seen = bell[OWN];
#endif
            if                             /* futex_wait: compare and queue in one step */
            :: atomic { bell[OWN] == seen -> queued[me] = 1 }
                !queued[me]; COVER(woken)
            :: bell[OWN] != seen -> COVER(rung)
            fi
        fi;
        store(AWAKE, 0);
        seen = 0
    od
}

proctype thread(byte me)
{
    byte e, i, seen;

    do
    :: e < R ->
#ifdef THREADS
        if
        :: me != 1 -> store(TO_READY, e + 1); signal()
        :: else
        fi;
#else
        store(TO_READY, e + 1);
        signal();
#endif
        await(ALL(READY));
        e++
    :: e == R -> COVER(completed); goto stop
#ifdef ABORT
    :: e < R && ALL(ALIVE) -> break
#endif
    od;
    store(TO_GONE, 0); COVER(abort);
#ifndef BUG_NO_ABORT_WAKE
    signal();
#endif
stop:
    e = 0
}

init
{
    atomic {
        run drain(0); run drain(1); run thread(0); run thread(1);
#if T == 3
        run drain(2); run thread(2)
#endif
    }
}
