/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of a rank's own rows that it keeps or gives away, and others who take them.
 *
 *   marks of pieces              src/ops/board.h, mm_reduce_given.c (twi_mm_mark, take, twi_mm_help_run)
 *   what an item waits for       mm_reduce_given.c (twi_mm_help_lacks, twi_mm_given_lacks)
 *   touch, health                src/task/engine.h
 *
 * What is shown, for every interleaving:
 *   - a piece is summed once, when the partials of its owner and of its peers are there and their slots not used again;
 *   - nobody writes to the owner's y after its call has ended or it has given up;
 *   - every piece is summed, also if no helper ever comes, and the owner sees it.
 *
 * How to read it: memory is sequentially consistent. The peer stands for all whose partials are needed; helpers may be
 * ranks whose own call could end at any time. Loads and the compare-and-exchange are steps of their own.
 *
 * Settings: -DN=n pieces, -DHELPERS=n, -DABORT: the owner may give up. COVER(x) and -DBUG_x as in epoch.pml.
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

inline sum(i)
{
    assert(partial[i] && sent[i] && !slot_used_again && lent);
    sums[i]++;
    assert(sums[i] == 1)
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
#else
       sum(i);
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
        (mark[i] == KEPT || mark[i] == TAKEN || mark[i] == DONE)
#else
        (mark[i] == KEPT || mark[i] == DONE);
        assert(sums[i] == 1)
#endif
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
        for (h : 1 .. HELPERS) {
            run helper()
        }
    }
}
