/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The epoch protocol of one communicator: W ranks commit and complete R rounds over shared memory.
 *
 *   complete, claims             src/task/task_round.c, task_share.c
 *   staging slots and their tags src/task/task_stage.c
 *   giving up                    run_home in task_share.c, twi_engine_drain in src/task/task_wait.c
 *   sleep and wake (-DBELL)      src/transport/bell.h; under store buffers in doorbell.pml
 *
 * What is shown, for every interleaving:
 *   - a slot read for round e holds round e: two slots per rank suffice, and reuse is safe
 *     (contents are modelled as the round they belong to, so right contents are right results);
 *   - all ranks choose the same mode, one-shot or claim, for a round;
 *   - in claim mode every chunk is executed exactly once;
 *   - no user buffer is touched after its owner's Wait returned, with success or with an error;
 *   - no Wait needs another call of a rank that has committed: a rank may leave after its last commit;
 *   - when a rank gives up, every Wait that is not satisfied ends, and never one that is;
 *   - nobody hangs, without any help from timeouts, and the state graph has no cycle: every run ends
 *     (the script searches for a non-progress cycle, and nothing here is labelled progress).
 *
 * How to read it: memory is sequentially consistent, a statement is one step unless it is in
 * atomic or d_step, and those hold at most one access to memory that others change. Conditions over
 * several ranks are tested in one step; that loses nothing, since each part changes only once, and all
 * in the same direction (a tag of round e stays until we are done with e; INTACT and mode would tell).
 * Epochs and tags: tag = e + 1, so 0 is an empty slot and "done > e" reads done >= tag.
 *
 * Settings: -DW=2|3 -DR=1..7 -DANYSIZE (a contribution may be too big for a slot: unstaged at will)
 * -DBIG (all are too big) -DBELL (waits really sleep) -DABORT (a second thread of one rank aborts at
 * any time) -DFAULT (a chunk may fail). COVER(x) marks lines that a run must reach when the script asks
 * for x. -DBUG_x plants the bug x, which the script must find.
 */
#ifndef W
#define W 2
#endif
#ifndef R
#define R 2
#endif
#ifndef BIG
#define BIG 0
#endif
#define K 2                                /* slots per rank */
#define N(h) ((h) == 0 -> 2 : 1)           /* chunks of a round at home h */
#define COVER(x) true                      /* see scripts/check_model.sh */

#if W == 2
#define ALL(p) (p(0) && p(1))
#define EACH(f) f(0); f(1)
#define CHUNKS 7                           /* bit 2h + i: chunk i of home h */
#else
#define ALL(p) (p(0) && p(1) && p(2))
#define EACH(f) f(0); f(1); f(2)
#define CHUNKS 23
#endif

/* The control blocks. Rank q writes its own entries; claim, finished and bell belong to everybody. */
byte ready[W], done[W];
byte tag[W * K], slot[W * K];              /* slot: what is in it, as the tag it should have */
byte claim[W], finished[W];
bool gone[W];                              /* health: has failed or aborted */
bool doing[W];                             /* may be inside a chunk */
#ifdef BELL
bool sleeping[W];                          /* a count; here one thread of a rank waits */
byte bell[W];
#endif

/* Observers: not part of the protocol. */
byte live[W];                              /* bit e: the user buffer of round e may be touched */
byte executed[R];                          /* which chunks of round e were executed */
byte mode[R];                              /* 0 undecided, else ONE_SHOT or CLAIM */
#define ONE_SHOT 1
#define CLAIM 2

#define READY(q)    (ready[q] > e)
#define STAGED(q)   (tag[SLOT(q, taken[q])] == e + 1)
#if defined(BUG_EARLY_REUSE)
#define FREE(q)     (done[q] + 1 >= tag[mine])
#elif defined(BUG_OWN_SLOT)
#define FREE(q)     (q == me || done[q] >= tag[mine])
#else
#define FREE(q)     (done[q] >= tag[mine])
#endif
#define TARGET(h)   (claims * N(h))        /* claim[h] and finished[h] never go back */
#define FINISHED(h) (finished[h] >= TARGET(h))
#define CLAIMED(h)  (claim[h] >= TARGET(h))
#define LIVE(q)     (live[q] & (1 << e))
#define ALIVE(q)    (!gone[q])
#define USABLE(q)   (q == me || !gone[q])  /* our own buffers are there as long as we are */
#define IDLE(q)     (q == me || !doing[q])
#define SLOT(q, n)  ((q) * K + (n) % K)
#define INTACT(q)   (slot[SLOT(q, taken[q] - 1)] == e + 1)
#define PASS(q)     taken[q] = taken[q] + STAGED(q)
#define FIRST       (me == 0 -> 1 : 0)     /* the peers in order: i = FIRST; i < W; i = NEXT */
#define NEXT        (i + 1 == me -> i + 2 : i + 1)

/* Wake whoever sleeps; comes after every store that a peer may wait for. */
inline signal()
{
#ifdef BELL
    i = FIRST;
    do
    :: i < W && sleeping[i] -> d_step { bell[i]++; i = NEXT }      /* and futex_wake */
    :: atomic { i < W && !sleeping[i] -> i = NEXT }
    :: i >= W -> break
    od;
    i = 0
#else
    skip
#endif
}

/* Wait for cond, or go to failed. What has happened wins over bad news seen at the same time. */
inline await(cond)
{
#ifdef BELL
    do
    :: cond -> break
    :: else ->
        if
        :: atomic { !ALL(ALIVE) -> held = cond }
#ifndef BUG_NEWS_WINS
            if
            :: cond -> COVER(latecomer); held = 0; break
            :: else
            fi;
#endif
            assert(!held); goto failed
        :: else
        fi;
        seen = bell[me];
        sleeping[me] = 1;
#ifdef BUG_NO_RECHECK
        bell[me] != seen;
#else
        if
        :: !(cond) && ALL(ALIVE) -> bell[me] != seen; COVER(woken)  /* futex_wait */
        :: else
        fi;
#endif
        d_step { sleeping[me] = 0; seen = 0 }
    od
#else
    if
    :: cond
    :: !(cond) && !ALL(ALIVE) -> goto failed
    fi
#endif
}

/* Make the contribution to the next round reachable. Never blocks: no free slot, no staging. */
inline commit()
{
    d_step { mine = SLOT(me, staged); live[me] = live[me] | (1 << committed) }
#ifdef BUG_WEAK_ORDER
    ready[me] = committed + 1;
#endif
    if
    :: ALL(FREE) && !BIG ->
        slot[mine] = committed + 1; COVER(staged);
        d_step { tag[mine] = committed + 1; staged++ }
#ifdef ANYSIZE
    :: true
#else
    :: !ALL(FREE) || BIG -> COVER(full)
#endif
    fi;
    atomic { committed++; ready[me] = committed; mine = 0 };
    signal()
}

/* Look for round e in the slot that each rank would have used. */
inline decide()
{
    d_step {
        all = ALL(STAGED);
        EACH(PASS);
        assert(mode[e] == 0 || mode[e] == (all -> ONE_SHOT : CLAIM));
        mode[e] = (all -> ONE_SHOT : CLAIM)
    }
}

/* Tags of all ranks are enough for one-shot; that a tag is missing means something only after ready. */
inline choose()
{
    if
    :: atomic { ALL(STAGED) -> if :: ALL(READY) :: else -> COVER(early) fi; decide() }
#ifdef BUG_FIRST_LOOK
    :: decide(); await(ALL(READY))
#else
    :: await(ALL(READY)); decide()
#endif
    fi
}

/* Read all slots. One step, as late as can be: a slot once overwritten stays so. */
inline one_shot()
{
    assert(ALL(INTACT)); COVER(one_shot)
}

/* Chunk c, which is ours, unless somebody has given up. */
inline run_chunk(h)
{
#if !defined(BUG_LATE_DOING) && !defined(BUG_NO_HEALTH)
    if
    :: ALL(USABLE)
    :: !ALL(USABLE) -> COVER(refused); doing[me] = 0; goto failed
#ifdef FAULT
    :: true -> COVER(fault); doing[me] = 0; goto failed
#endif
    fi;
#endif
    d_step {
        assert(c >= TARGET(h) - N(h));                            /* a chunk of this round */
        c = 1 << (2 * (h) + c - (TARGET(h) - N(h)));
        assert(ALL(LIVE))                                         /* read the contributions */
    }
    d_step {
        assert(ALL(LIVE) && !(executed[e] & c));                  /* write the results */
        executed[e] = executed[e] | c;
        c = 0
    }
    finished[h]++
}

/* Execute what is left of home h for all ranks. */
inline work(h)
{
#ifdef BUG_LATE_DOING
    if
    :: ALL(USABLE)
    :: !ALL(USABLE) -> goto failed
    fi;
#endif
    doing[me] = 1;                         /* and a fence: before we look at health */
    do
    :: claim[h] < TARGET(h) ->
        c = claim[h];
        if
#ifdef BUG_CLAIM_TWICE
        :: c < TARGET(h) -> claim[h] = c + 1;
#else
        :: atomic { c < TARGET(h) && claim[h] == c -> claim[h] = c + 1 }         /* CAS */
#endif
            run_chunk(h); ran = 1
        :: else -> c = 0
        fi
    :: else -> break
    od;
    doing[me] = 0;
    if
    :: ran -> ran = 0; signal()
    :: else
    fi
}

inline complete()
{
    choose();
    if
    :: all ->
#ifdef BUG_EARLY_ACK
        done[me] = e + 1;
#endif
        one_shot()
    :: else ->
        claims++;
        work(me); work((me + 1) % W);
#if W == 3
        work((me + 2) % W);
#endif
#ifdef BUG_EARLY_DONE
        await(ALL(CLAIMED));
#else
        await(ALL(FINISHED));
        assert(executed[e] == CHUNKS); COVER(claim);
#endif
    fi;
    atomic {                               /* nobody waits for done: no signal */
        live[me] = live[me] & ~(1 << e); all = 0;
        e++; done[me] = e
    }
}

/* Tell everybody, then wait until nobody can be inside our buffers. */
inline give_up()
{
#ifndef BUG_SILENT
    gone[me] = 1;
    signal();
#endif
#ifndef BUG_NO_DRAIN
    ALL(IDLE);                             /* after a fence */
#endif
    live[me] = 0
}

proctype rank(byte me)
{
    byte committed, e;                     /* rounds committed; the round to complete next */
    byte staged, taken[W];                 /* slots filled; slots of each rank consumed */
    byte claims;                           /* claim rounds so far */
    byte mine, i, c, seen;
    bool all, held, ran;

    do
    :: committed < R -> commit()
    :: e < committed -> complete()
    :: committed == R -> break             /* all done, or computing and never to come back */
    :: gone[me] -> goto failed             /* aborted by another thread: a Wait says so, */
    :: gone[me] -> COVER(silent); goto stop    /* or none follows */
    od;
    if
    :: e == R -> COVER(completed)
    :: else -> COVER(left)
    fi;
    goto stop;
failed:
    give_up(); COVER(failed);
stop:
    skip;
    d_step {                               /* fewer states: forget what no longer matters */
        e = 0; staged = 0; claims = 0; mine = 0; i = 0; c = 0; seen = 0; all = 0; held = 0; ran = 0;
        taken[0] = 0; taken[1] = 0; taken[W - 1] = 0; committed = 0
    }
}

/* Called from a second thread of rank me; buffers stay in use until the Wait of the first has failed. */
proctype abort(byte me)
{
    byte i;

    gone[me] = 1; COVER(abort);
#ifndef BUG_NO_ABORT_WAKE
    signal();
#endif
#ifdef BELL
    if
    :: sleeping[me] -> bell[me]++
    :: else
    fi
#endif
}

init
{
    atomic {
        run rank(0); run rank(1);
#if W == 3
        run rank(2);
#endif
#ifdef ABORT
        if
        :: run abort(0)
        :: run abort(1)
#if W == 3
        :: run abort(2)
#endif
        :: true
        fi
#endif
    }
}
