/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pieces of one rank's results on their way to the y of another: the receiver's workers copy them, and their owner
 * brings some, or none.
 *
 *   the word that both count in  src/ops/ops_units.c (twi_claim)
 *   items of copies and brings   src/ops/mm_reduce_copies.c
 *
 * What is shown, for every interleaving:
 *   - a piece is moved once, and only when it is there;
 *   - when all items of copies have run, every piece has somebody who moves it, also if the owner never brings one;
 *   - the receiver ends its call only when all of them are there.
 *
 * How to read it: memory is sequentially consistent; ops.pml has what is around it. Loads and the
 * compare-and-exchange are steps of their own.
 *
 * Settings: -DN=n pieces, -DWORKERS=n of the receiver. COVER(x) and -DBUG_x as in epoch.pml.
 */
#ifndef N
#define N 3
#endif
#ifndef WORKERS
#define WORKERS 2
#endif
#define COVER(x) true                      /* see scripts/check_model.sh */

byte result;                               /* pieces that are there */
byte claimed, brought, copied;
byte next;                                 /* item of copies */
bool moved[N];
byte ended;

inline move(piece)
{
    assert(piece < N && piece < result && !moved[piece]);
    moved[piece] = true
}

/* The next piece among the first `there`, in *unit; NONE: there is none. */
#define NONE 255
inline claim(there, seen, unit)
{
    do
    :: seen = claimed;
       if
       :: seen >= there -> unit = NONE; break
       :: else
       fi;
       atomic {
           if
           :: claimed == seen -> claimed++; unit = seen; break
           :: else -> COVER(contended)
           fi
       }
    od
}

proctype worker()
{
    byte item, there, seen, unit;
    do
    :: atomic { next < N && result > next -> item = next; next++ };
#ifdef BUG_STALE_THERE
       there = result;
       claim(there, seen, unit);
       if
       :: unit != NONE -> move(unit); copied++
       :: else
       fi
#else
       do
       :: claim(item + 1, seen, unit);
          if
          :: unit != NONE -> move(unit); copied++
          :: else -> COVER(nothing); break
          fi
       od
#endif
    :: next == N -> break
    od;
    atomic { ended++ }
}

proctype owner()
{
    byte seen, unit;
    do
    :: result < N -> result++
    :: result > 0 ->                       /* it has nothing else to do, and the receiver lends its y */
       claim(result, seen, unit);
       if
       :: unit != NONE -> move(unit); brought++; COVER(brought)
       :: else
       fi
    :: result == N -> break
    od
}

/* The item that waits for all pieces of the owner. */
proctype arrive()
{
    copied + brought == N;
    byte i;
    for (i : 0 .. N - 1) {
        assert(moved[i])
    }
    COVER(completed)
}

init
{
    atomic {
        byte i;
        for (i : 1 .. WORKERS) {
            run worker()
        }
        run owner();
        run arrive()
    }
}
