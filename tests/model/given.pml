/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of a rank's own rows that it keeps or gives away, and others who take them.
 *
 *   marks of pieces              src/ops/board.h, mm_reduce_given.c (twi_mm_mark, take, twi_mm_help_run)
 *   what an item waits for       mm_reduce_given.c (twi_mm_help_lacks, twi_mm_given_lacks)
 *   results for others           mm_reduce_given.c (deliver), mm_reduce_copies.c (is_there)
 *   touch, health                src/task/engine.h
 *
 * What is shown, for every interleaving:
 *   - a piece is summed once, when the partials of its owner and of its peers are there and their slots not used again;
 *   - nobody writes to the y of the owner or of another rank after its call has ended or it has given up;
 *   - the other rank, which copies pieces that were kept and finds those that were given in its y, has all in the end;
 *   - every piece is summed, also if no helper ever comes, and the owner sees it.
 *
 * How to read it: memory is sequentially consistent. The peer stands for all whose partials are needed; helpers may be
 * ranks whose own call could end at any time. Loads and the compare-and-exchange are steps of their own.
 *
 * Settings: -DN=n pieces, -DHELPERS=n, -DABORT: the owner may give up, -DLEAVE: the other rank may. COVER(x) and -DBUG_x as in epoch.pml.
 */
#ifndef N
#define N 2
#endif
#ifndef HELPERS
#define HELPERS 2
#endif
#define COVER(x) true                      /* see scripts/check_model.sh */

mtype = { NONE, KEPT, GIVEN, TAKEN, DONE };

mtype mark[N] = NONE;
bool partial[N];                           /* of the owner, in its slot */
bool sent[N];                              /* by the peer */
bool slot_used_again;                      /* that of the peer */
byte sums[N];
bool lent = true;                          /* the owner's y */
bool healthy = true;
bool owner_taken;                          /* `taken`: of the slots of all ranks */
byte touching;
bool result[N];                            /* told by the owner */
bool other_lent = true, other_healthy = true, in_other_y[N];

inline sum(i)
{
    assert(partial[i] && sent[i] && !slot_used_again && lent);
    sums[i]++;
    assert(sums[i] == 1)
}

inline deliver(i)
{
    if
    :: other_healthy ->
       assert(other_lent);                 /* also when its health is looked at and then it is written to: see touch */
       in_other_y[i] = true
    :: else
    fi
}

/* An item of a helper, or of the owner itself, that has become ready. */
inline take_and_sum(i, own)
{
    mine = mark[i] == GIVEN;
    touching++;
#ifndef BUG_NO_HEALTH
    if
    :: mine && !healthy -> mine = false
    :: else
    fi;
#endif
#ifdef BUG_NO_TAKE
    if
    :: mine -> mark[i] = TAKEN
    :: else
    fi;
#else
    atomic {
        if
        :: mine && mark[i] == GIVEN -> mark[i] = TAKEN
        :: mine && mark[i] != GIVEN -> mine = false; COVER(contended)
        :: else
        fi
    };
#endif
    if
    :: mine ->
#ifdef BUG_EARLY_DONE
       mark[i] = DONE;
       sum(i);
#elif defined(BUG_LATE_DELIVERY)
       sum(i);
       mark[i] = DONE;
       deliver(i);
#else
       sum(i);
       deliver(i);
       mark[i] = DONE;
#endif
       if
       :: own -> COVER(own_taken)
       :: else -> COVER(taken)
       fi
    :: else
    fi;
    touching--
}

/* Ranks are asked one after the other, the peer before the owner. */
inline wait_ready(i)
{
#ifdef BUG_NOT_KNOWN
    (mark[i] != GIVEN || sent[i]);
#else
    (mark[i] == KEPT || mark[i] == TAKEN || mark[i] == DONE || sent[i]);
#endif
    (mark[i] != NONE)
}

proctype peer()
{
    byte i;
    for (i : 0 .. N - 1) {
        sent[i] = true
    }
    /* Its next call has a slot again when the reader of this one has taken it. */
#ifdef BUG_TAKEN_ALONE
    slot_used_again = true
#else
    if
    :: owner_taken -> slot_used_again = true
    :: !healthy                            /* then there is no next call */
    fi
#endif
}

proctype other()
{
    byte i;
#ifdef LEAVE
    if
    :: other_healthy = false;
       touching == 0;
       other_lent = false;
       COVER(left);
       goto end
    :: true
    fi;
#endif
    for (i : 0 .. N - 1) {
        if
        :: result[i]
        :: !healthy -> goto end
        fi;
        if
#ifdef BUG_SKIP_UNKNOWN
        :: mark[i] != KEPT -> skip
#else
        :: mark[i] == GIVEN || mark[i] == TAKEN || mark[i] == DONE -> COVER(found)
#endif
        :: else -> in_other_y[i] = true; COVER(copied)
        fi;
        assert(in_other_y[i])
    }
    other_lent = false;
end:
    skip
}

proctype helper()
{
    byte i;
    bool mine;
    for (i : 0 .. N - 1) {
        if
        :: wait_ready(i);
           take_and_sum(i, false)
        :: break                           /* it has other things to do, or gives up, too */
        fi
    }
}

proctype owner()
{
    byte i;
    bool mine, aborts;
    for (i : 0 .. N - 1) {
        if
        :: sent[i] ->                      /* kept: summed while the tile is in cache */
           partial[i] = true;
           sum(i);
           result[i] = true;
           mark[i] = KEPT;
           COVER(kept)
        :: partial[i] = true;
           mark[i] = GIVEN
        fi
    }
#ifdef ABORT
    if
    :: aborts = true
    :: aborts = false
    fi;
    if
    :: aborts ->
       healthy = false;
       touching == 0;
       lent = false;
       COVER(gave_up);
       goto end
    :: else
    fi;
#endif
#ifndef BUG_NOT_OWN
    for (i : 0 .. N - 1) {
        wait_ready(i);
        take_and_sum(i, true)
    }
#endif
    for (i : 0 .. N - 1) {
#ifdef BUG_END_TAKEN
        (mark[i] == KEPT || mark[i] == TAKEN || mark[i] == DONE);
#else
        (mark[i] == KEPT || mark[i] == DONE);
        assert(sums[i] == 1);
#endif
        result[i] = true
    }
    COVER(completed);
    owner_taken = true;
    lent = false;
end:
    COVER(ended)
}

init
{
    atomic {
        byte h;
        run peer();
        run owner();
        run other();
        for (h : 1 .. HELPERS) {
            run helper()
        }
    }
}
