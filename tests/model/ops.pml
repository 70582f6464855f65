/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The board and the slots of the fused operators: W ranks make C calls of up to R rounds.
 *
 *   words, entries, places       src/ops/board.h
 *   slots                        src/ops/ops_slots.c
 *   sent, result, taken          src/ops/ops_units.c
 *   entering, items, the end     src/ops/ops_flow.c
 *   comparing what ranks call    src/ops/ops_agree.c
 *
 * In each round a rank writes U units to its slot. Every peer reads them, as rows of a gather or
 * partials of a sum. With -DRESULTS the rank then sums, writes a result to the same slot, and every
 * peer copies that; with -DPUSH it writes it to the peer's y instead, who need not read the slot. With -DLEND units
 * are read from the rank's own memory, which it lends for the call. With -DLISTS the first slot of a call begins with
 * a list that peers read first.
 *
 * What is shown, for every interleaving:
 *   - what a rank reads is what it expects, from the first byte to the last: of this call and this
 *     round, and neither unfinished nor overwritten;
 *   - a rank's y is written only while the rank is in the call, and it is there when the call ends;
 *   - rows that a rank lends are read only while it is in the call;
 *   - an entry is not overwritten while a rank has still to compare it: two suffice;
 *   - nothing is read of a rank that calls something else, and no such call ends well on any rank;
 *   - nobody hangs: every rank ends all its calls, or with an error where calls differ;
 *   - the state graph has no cycle: every run ends.
 *
 * How to read it: memory is sequentially consistent. A rank is a team of workers, so it takes any step
 * that is ready: a unit may be written while another one is read. Writing and reading have a begin and
 * an end. A step touches one thing that others change, or words of several ranks that only grow. What a
 * rank waits for can only become true, so waiting is just a step that is not ready; sleep and wake are
 * in doorbell.pml. A rank that sees a peer fail may fail at any time.
 *
 * A slot may be any that is free, not the lowest one only.
 *
 * Settings: -DW=2|3 -DC=n -DR=n -DU=n, -DPLACES=n (slots that the memory has room for), -DLIVE=n (places on
 * the board), -DRESULTS, -DPUSH (with it, W = 2), -DLEND (R = 1), -DLISTS, -DNOTHING (units are written, nobody needs
 * one), -DONEWAY (rank 0 alone needs them, its own too), -DUNEVEN (rank 1 has one round only), -DDIVERGE (one rank
 * calls something else once). COVER(x) and -DBUG_x as in epoch.pml.
 */
#ifndef W
#define W 2
#endif
#ifndef C
#define C 2
#endif
#ifndef R
#define R 1
#endif
#ifndef U
#define U 1
#endif
#ifndef PLACES
#define PLACES 2
#endif
#ifndef LIVE
#define LIVE 2
#endif
#ifdef BUG_ONE_ENTRY
#define ENTRIES 1
#else
#define ENTRIES 2
#endif
#define COVER(x) true                      /* see scripts/check_model.sh */

#if W == 2
#define ALL(p) (p(0) && p(1))
#else
#define ALL(p) (p(0) && p(1) && p(2))
#endif
#define NEXT1 ((me + 1) % W)
#define NEXT2 ((me + 2) % W)

#ifdef UNEVEN
#define ROUNDS(q) ((q) == 1 -> 1 : R)
#else
#define ROUNDS(q) R
#endif
#if defined(NOTHING)
#define NEEDED(q) 0                        /* rounds of q that this rank reads */
#elif defined(ONEWAY)
#define NEEDED(q) (me == 0 -> ROUNDS(q) : 0)
#else
#define NEEDED(q) ROUNDS(q)
#endif
#ifdef RESULTS
#define SUMMED(q) ROUNDS(q)
#else
#define SUMMED(q) 0
#endif

/* The boards: rank q writes its own words, entries and places. */
#define EPOCH(call, count) ((call) * (R * U + 1) + (count))
byte entered[W], sent[W], result[W], taken[W];
byte entry[W * 2];
byte place[W * 2 * LIVE];
#define ENTRY(q) entry[(q) * 2 + call % ENTRIES]
#define PLACE(q, r) place[((q) * 2 + call % 2) * LIVE + (r) % LIVE]

/* Slots, as what is in them: units, the result, the list. 0: being written. */
#define PARTS (U + 2)
byte slot[W * PLACES * PARTS];
#define PART(q, at, part) (((q) * PLACES + (at)) * PARTS + (part))
#define TAG(q, r) (1 + call * R + (r) + 64 * KIND(q))

#if defined(PUSH) || defined(LEND)
byte lent[W];                              /* 1 + the call for which rank q lends its memory; 0: it does not */
#define LENT(q) (q == me || lent[q] == 1 + call)
#endif
#ifdef PUSH
byte y[W * R];                             /* of rank q, in round r: what its peer wrote. 0: being written */
#define Y(q, r) y[(q) * R + (r)]
#endif

#ifdef DIVERGE
byte when;                                 /* rank 0 calls something else in this call; ranks are alike */
#define KIND(q) ((q) == 0 && call == when)
#else
#define KIND(q) 0
#endif
bool gone[W];                              /* has failed */

/* ---- Entering ---------------------------------------------------------------------------------- */

#define OURS(q)      (q == me || (agreed & (1 << q)))
#define ENTERED(q)   (q == me || entered[q] >= EPOCH(call, 1))
#define LIST(q)      (slot[PART(q, PLACE(q, 0), U + 1)] == TAG(q, 0))

inline publish()
{
#ifdef BUG_EARLY_ENTERED
    entered[me] = EPOCH(call, 1);
#endif
    ENTRY(me) = 1 + call + 64 * KIND(me);
#ifdef LISTS
    slot[PART(me, PLACE(me, 0), U + 1)] = TAG(me, 0);
#endif
    atomic { entered[me] = EPOCH(call, 1); inside = 1 }
}

/* Whether peer p calls what we call. */
inline compare(p)
{
    assert(ENTRY(p) % 64 == 1 + call);     /* an entry of this call */
    if
    :: ENTRY(p) == 1 + call + 64 * KIND(me) -> agreed = agreed | (1 << (p))
    :: else -> COVER(diverged); goto failed
    fi
}

/* ---- Slots ------------------------------------------------------------------------------------- */

#if defined(BUG_NO_TAKEN)
#define PASSED(q, i) true
#elif defined(BUG_OWN_TAKEN)
#define PASSED(q, i) (q != me || taken[q] >= until[i])
#else
#define PASSED(q, i) (taken[q] >= until[i])
#endif
#define PASSED0(q)   PASSED(q, 0)
#define PASSED1(q)   PASSED(q, 1)
#define READ_OUT(q)  (taken[q] >= EPOCH(call, opened + 1 - LIVE))
#ifdef BUG_NO_LIMIT
#define FEW_LIVE     true
#else
#define FEW_LIVE     (opened < LIVE || ALL(READ_OUT))
#endif
#ifdef BUG_LATE_OPEN
#define MAY_ENTER    ALL(ENTERED)
#else
#define MAY_ENTER    (opened == 0)
#endif
#define MAY_OPEN     (started && opened < ROUNDS(me) && (inside || MAY_ENTER) && FEW_LIVE)

inline open(i)
{
    if
    :: until[i] > 0 -> COVER(reused)
    :: else
    fi;
    until[i] = EPOCH(call, opened + 1);
    PLACE(me, opened) = i;
    opened++
}

/* ---- Writing ----------------------------------------------------------------------------------- */

#define UNIT(u)      PART(me, PLACE(me, (u) / U), (u) % U)
#define WRITTEN(u)   (done & (1 << (u)))
#define WRITING(u)   (busy & (1 << (u)))
#define ALL_WRITTEN  (done == (1 << (ROUNDS(me) * U)) - 1)

inline begin_unit()
{
    slot[UNIT(begun)] = 0;
    busy = busy | (1 << begun);
    begun++;
#ifdef BUG_EARLY_SENT
    sent[me] = EPOCH(call, begun)
#endif
}

/* Units end in any order, and are told in theirs. */
inline end_unit(u)
{
    slot[UNIT(u)] = TAG(me, (u) / U);
    busy = busy & ~(1 << (u));
    done = done | (1 << (u));
#ifdef BUG_ANY_ORDER
    told++;
#else
    do
    :: WRITTEN(told) -> told++
    :: else -> break
    od;
#endif
#ifndef BUG_EARLY_SENT
    sent[me] = EPOCH(call, told);
#endif
#ifdef ONEWAY
    pass_rounds()
#endif
}

/* ---- Reading ----------------------------------------------------------------------------------- */

#ifdef BUG_NO_LOOK
#define AGREES(p)     ENTERED(p)
#else
#define AGREES(p)     OURS(p)
#endif
#ifdef LISTS
#define MET           met
#else
#define MET           true
#endif
#define HAS_SENT(p)   (AGREES(p) && sent[p] >= EPOCH(call, read[p] + 1))
#define HAS_RESULT(p) (AGREES(p) && result[p] >= EPOCH(call, copied[p] + 1))
#define CAN_READ(p)   (from == NONE && MET && read[p] < NEEDED(p) * U && HAS_SENT(p))
#define CAN_COPY(p)   (from == NONE && MET && copied[p] < SUMMED(p) && HAS_RESULT(p))
#define NONE          255

#define LEAST(a, b)   ((a) < (b) -> (a) : (b))
#define HAS_READ(q)   (q == me || read[q] >= LEAST(summed + 1, NEEDED(q)) * U)
#define READ_ROUND(q) (q == me -> READ_OWN(q) : (read[q] + EARLY(q) >= LEAST(passed + 1, NEEDED(q)) * U && \
                                                 copied[q] >= LEAST(passed + 1, SUMMED(q))))
#ifdef ONEWAY
#define READ_OWN(q)   (told >= LEAST(passed + 1, NEEDED(q)) * U)
#else
#define READ_OWN(q)   true
#endif
#ifdef BUG_SHORT_READS
#define LAST          (me == 0 -> R : 1)   /* rounds up to the last one that we need */
#else
#define LAST          R
#endif
#define SUM_ROUND     (summed >= LEAST(passed + 1, SUMMED(me)))
#ifdef BUG_EARLY_TAKEN
#define EARLY(q)      (from != NONE && peer == q && !copying)
#else
#define EARLY(q)      0
#endif

/* Rounds of which nothing is left to read, of any rank. */
inline pass_rounds()
{
    do
    :: passed < LAST && ALL(READ_ROUND) && SUM_ROUND -> passed++
    :: else -> break
    od;
    if
    :: passed > 0 -> taken[me] = EPOCH(call, passed)
    :: else
    fi
}

inline begin_read(p, round, part)
{
    from = PART(p, PLACE(p, round), part);
    peer = p;
    assert(slot[from] == TAG(me, round));
#ifdef LEND
    assert(LENT(p));
#endif
#ifdef BUG_EARLY_TAKEN
    pass_rounds()
#endif
}

inline end_read(round, count)
{
    assert(slot[from] == TAG(me, round));  /* still */
#ifdef LEND
    assert(LENT(peer));
#endif
    count++;
    from = NONE; peer = 0; copying = 0;
    pass_rounds()
}

/* The result takes the place of a partial of ours, or goes to the peer's y. */
inline begin_result()
{
#ifdef PUSH
    assert(ALL(LENT));
    Y(NEXT1, summed) = 0;
#else
    slot[PART(me, PLACE(me, summed), U)] = 0;
#endif
#ifdef BUG_EARLY_RESULT
    result[me] = EPOCH(call, summed + 1);
#endif
    summing = 1
}
inline end_result()
{
#ifdef PUSH
    assert(ALL(LENT));                     /* still */
    Y(NEXT1, summed) = TAG(me, summed);
#else
    slot[PART(me, PLACE(me, summed), U)] = TAG(me, summed);
#endif
    summed++; summing = 0;
    result[me] = EPOCH(call, summed); COVER(summed);
    pass_rounds()
}

/* ---- A rank ------------------------------------------------------------------------------------ */

#ifdef BUG_EARLY_PUSH
#define MAY_SUM      true
#else
#define MAY_SUM      ALL(HAS_READ)
#endif
#define READ_ALL(q)  (q == me || (read[q] == NEEDED(q) * U && copied[q] == SUMMED(q)))
#define ALL_DONE     (inside && MET && ALL_WRITTEN && summed == SUMMED(me) && ALL(READ_ALL))
#if defined(LEND) && !defined(BUG_END_EARLY)
#define HAS_TAKEN(q) (q == me || taken[q] >= EPOCH(call, 1))
#else
#define HAS_TAKEN(q) true
#endif
#ifdef BUG_END_ALONE
#define MAY_END      ALL_DONE
#else
#define MAY_END      (ALL_DONE && ALL(OURS) && ALL(HAS_TAKEN))
#endif

/* Before the entry is there: rounds of which we never need anything. With lists that is not known yet. */
inline start_call()
{
#if !defined(LISTS) || defined(BUG_EARLY_PASS)
    pass_rounds();
#endif
#if defined(PUSH) || defined(LEND)
    lent[me] = 1 + call;
#endif
    started = 1
}

inline end_call()
{
#ifdef DIVERGE
    assert(call != when);                  /* nobody ends well what differs */
#endif
#if defined(PUSH) || defined(LEND)
    lent[me] = 0;
#endif
    taken[me] = EPOCH(call + 1, 0);
    call++;
    started = 0; inside = 0; met = 0; agreed = 0; opened = 0; begun = 0; done = 0; told = 0; summed = 0; passed = 0;
    read[0] = 0; read[1] = 0; read[W - 1] = 0; copied[0] = 0; copied[1] = 0; copied[W - 1] = 0
}

#define STEPS_WITH(p) \
    :: atomic { inside && !OURS(p) && ENTERED(p) -> compare(p) } \
    :: atomic { CAN_READ(p) -> begin_read(p, read[p] / U, read[p] % U) } \
    :: atomic { from != NONE && peer == p && !copying -> end_read(read[p] / U, read[p]) } \
    STEPS_OF_RESULTS(p)

#ifdef PUSH
#define STEPS_OF_RESULTS(p) \
    :: atomic { CAN_COPY(p) -> assert(Y(me, copied[p]) == TAG(me, copied[p])); copied[p]++; pass_rounds() }
#else
#define STEPS_OF_RESULTS(p) \
    :: atomic { CAN_COPY(p) -> copying = 1; begin_read(p, copied[p], U) } \
    :: atomic { from != NONE && peer == p && copying -> end_read(copied[p], copied[p]) }
#endif

proctype rank(byte me)
{
    byte call, until[PLACES];              /* taken of all ranks that makes a place free */
    byte opened;                           /* rounds whose slot is ours to write */
    byte begun, busy, done, told;          /* units: begun, being written, written, told */
    byte read[W], copied[W];               /* units and results of each peer */
    byte from = NONE, peer;                /* what is being read, and whose it is */
    byte summed, passed;                   /* rounds with our result; rounds that we have read */
    byte agreed;                           /* peers that call what we call */
    bool started, inside, met, copying, summing;

    do
    :: atomic { call < C && !started -> start_call() }
    :: atomic { MAY_OPEN && ALL(PASSED0) -> open(0) }
#if PLACES > 1
    :: atomic { MAY_OPEN && ALL(PASSED1) -> open(1) }
#endif
    :: !inside && opened > 0 -> publish()
    STEPS_WITH(NEXT1)
#if W == 3
    STEPS_WITH(NEXT2)
#endif
#ifdef LISTS
    :: atomic { inside && !met && ALL(OURS) -> assert(ALL(LIST)); met = 1; COVER(met); pass_rounds() }
#endif
    :: atomic { inside && begun < opened * U && (busy & (busy - 1)) == 0 -> begin_unit() }
    :: atomic { WRITING(0) -> end_unit(0) }
#if R * U > 1
    :: atomic { WRITING(1) -> end_unit(1) }
#endif
#if R * U > 2
    :: atomic { WRITING(2) -> end_unit(2) }
    :: atomic { WRITING(3) -> end_unit(3) }
#endif
#ifdef RESULTS
    :: atomic { inside && MET && !summing && summed < opened && MAY_SUM -> begin_result() }
    :: atomic { summing -> end_result() }
#endif
    :: atomic { MAY_END -> end_call() }
    :: call == C -> COVER(completed); goto stop
#ifdef DIVERGE
    :: gone[NEXT1] || gone[NEXT2] -> COVER(told); break
#endif
    od;
failed:
    gone[me] = 1;
stop:
    skip
}

init
{
    atomic {
#ifdef DIVERGE
        if
        :: when = 0
        :: when = C - 1
        fi;
#endif
        run rank(0); run rank(1);
#if W == 3
        run rank(2)
#endif
    }
}
