#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks the Promela models of the epoch protocol and of the fused operators (tests/model) with spin.
#
# A "safe" run searches all states for a failed assertion or a hang, an "ends" run for a cycle, that
# is a run without end. Both fail on a truncated search, and when a line marked COVER(x) was not
# reached for an x in the run's list. A "bug" run plants one error and must find it, as the message
# given. Two searches run at a time, each below MEMORY_MB.
#
# Usage: check_model.sh [name fragment]    (-h for this text)
# Exit status: 0 all passed, 1 something failed, 77 spin is not installed (1 if CI=true).
set -u

MEMORY_MB=900
DEPTH=5000
SECONDS_EACH=240
models=$(cd "$(dirname "${BASH_SOURCE[0]}")/../tests/model" && pwd) || exit 1

if [ "${1-}" = -h ] || [ "${1-}" = --help ]; then
    sed -n '4,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
fi
only=${1-}

if ! command -v spin >/dev/null; then
    echo "check_model.sh: spin is not installed (Debian package spin), the models were not checked"
    [ "${CI-}" = true ] && exit 1
    exit 77
fi

tmp=$(mktemp -d "${TMPDIR:-/tmp}/tilewire-model.XXXXXX") || exit 1
set -m # each search is a process group, so that it can be ended as a whole
trap 'for job in $(jobs -p); do kill -- "-$job" 2>/dev/null; done; wait; rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM HUP

# search DIR safe|ends MODEL DEFINES: leaves pan's report in DIR/report
search() {
    local kind=-DSAFETY options=
    [ "$2" = ends ] && kind=-DNP options=-l
    mkdir "$1" && cp "$models/$3.pml" "$1" && cd "$1" || return
    # shellcheck disable=SC2086
    {
        spin -a $4 "$3.pml" &&
            ${CC:-cc} ${level:--O1} -w $kind -DCOLLAPSE -DMEMLIM=$MEMORY_MB -o pan pan.c &&
            timeout --foreground $SECONDS_EACH ./pan $options -m$DEPTH
    } >report 2>&1
}

# unreached DIR MODEL TAGS: prints the tags of which some marked line was not reached
unreached() {
    local tag line lines
    for tag in $3; do
        lines=$(grep -n "COVER($tag)" "$1/$2.pml" | cut -d: -f1)
        [ -n "$lines" ] || echo "$tag (no such mark)"
        for line in $lines; do
            grep -q "^[[:space:]]$2.pml:$line, state " "$1/report" && echo "$tag" && break
        done
    done
}

# complaint DIR safe|ends MODEL TAGS: prints why the search is not a pass, nothing if it is
complaint() {
    local mode='invalid end states[[:space:]]*+'
    [ "$2" = ends ] && mode='non-progress cycles[[:space:]]*+'
    grep '^pan:[0-9]*:' "$1/report" && return
    if ! grep -q 'errors: 0$' "$1/report" || ! grep -q "$mode" "$1/report"; then
        echo "no complete report:"
        head -n 5 "$1/report"
    elif grep -q -e 'Search not completed' -e 'max search depth' -e 'out of memory' "$1/report"; then
        echo "truncated search"
    else
        unreached "$1" "$3" "$4" | sed 's/^/not reached: /'
    fi
}

verdict() { # NAME DIR COMPLAINT
    if [ -z "$3" ]; then
        echo "ok - $1 ($(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' "$2/report") states)"
        echo >"$2.ok"
    else
        echo "not ok - $1"$'\n'"$3"
    fi
    rm -rf "$2"
}

check() { # safe|ends MODEL DEFINES TAGS
    search "$dir" "$1" "$2" "$3"
    verdict "$name" "$dir" "$(complaint "$dir" "$1" "$2" "$4")"
}

bug() { # safe|ends MODEL DEFINES MESSAGE
    level=-O0 search "$dir" "$1" "$2" "$3"
    verdict "$name" "$dir" "$(grep '^pan:[0-9]*:' "$dir/report" | grep -qF "$4" ||
        echo "the planted bug was not found: $4")"
}

# blind: the run below cannot reach its tag, and the check must notice
blind() {
    search "$dir" "$1" "$2" "$3"
    verdict "$name" "$dir" "$([ "$(unreached "$dir" "$2" "$4")" = "$4" ] || echo "coverage is not checked")"
}

total=0
start() { # NAME check|bug|blind ARGS...
    local name=$1 dir
    [[ $name == *"$only"* ]] || return 0
    while [ "$(jobs -pr | wc -l)" -ge 2 ]; do wait -n; done
    total=$((total + 1))
    dir=$tmp/$total
    shift
    "$@" &
}

hang='invalid end state'
touched='(live['
epoch_all='staged full early one_shot claim completed left'
gave_up='abort failed refused fault'

start "three ranks, three rounds" check safe epoch "-DW=3 -DR=3" "$epoch_all"
start "three ranks, two rounds, abort" check safe epoch "-DW=3 -DR=2 -DABORT" \
    "staged early one_shot completed left abort failed silent"
start "three ranks, claims, abort" check safe epoch "-DW=3 -DR=1 -DBIG -DABORT" \
    "claim completed left abort failed refused"
start "three ranks, claims, faults" check safe epoch "-DW=3 -DR=1 -DBIG -DFAULT" \
    "claim completed left failed refused fault"
start "two ranks, four rounds, abort" check safe epoch "-DR=4 -DABORT" "$epoch_all abort failed refused"
start "claims, two rounds of any size, abort and faults" check safe epoch "-DR=2 -DANYSIZE -DABORT -DFAULT" \
    "staged early one_shot claim completed left $gave_up"
start "claims, three rounds of any size" check safe epoch "-DR=3 -DANYSIZE" \
    "staged early one_shot claim completed left"
start "sleep and wake, three rounds" check safe epoch "-DR=3 -DBELL" "$epoch_all woken"
start "sleep and wake, two rounds, abort" check safe epoch "-DR=2 -DBELL -DABORT" \
    "staged early one_shot completed left abort failed"
start "sleep and wake in claims, abort and faults" check safe epoch "-DR=1 -DBELL -DANYSIZE -DABORT -DFAULT" \
    "staged early one_shot claim completed left latecomer woken $gave_up"
start "doorbell with store buffers, three ranks" check safe doorbell "-DW=3 -DR=2" \
    "woken rung completed"
start "doorbell with store buffers, abort" check safe doorbell "-DR=4 -DABORT" \
    "woken rung completed abort"
start "doorbell with store buffers, two threads of a rank" check safe doorbell "-DTHREADS -DR=3" \
    "woken rung completed"
start "doorbell with membarrier, three ranks" check safe doorbell "-DREMOTE_BARRIER -DW=3 -DR=1" \
    "woken rung completed"
start "doorbell with membarrier, abort" check safe doorbell "-DREMOTE_BARRIER -DR=4 -DABORT" \
    "woken rung completed abort"
start "doorbell with membarrier, two threads of a rank" check safe doorbell "-DREMOTE_BARRIER -DTHREADS -DR=2" \
    "woken rung completed"
start "operators: three ranks" check safe ops "-DW=3" "reused completed"
start "operators: three ranks, results" check safe ops "-DW=3 -DC=1 -DRESULTS" "summed completed"
start "operators: two rounds of two units, in any order" check safe ops "-DR=2 -DU=2" "reused completed"
start "operators: two rounds, results" check safe ops "-DR=2 -DRESULTS" "reused summed completed"
start "sums that are given" check safe given "-DN=2 -DHELPERS=1" "kept taken own_taken contended found copied completed ended"
start "sums that are given, three helpers" check safe given "-DN=1 -DHELPERS=3" \
    "kept taken own_taken contended found copied completed ended"
start "sums that are given by who gives up" check safe given "-DN=2 -DHELPERS=1 -DABORT" "kept taken own_taken gave_up ended"
start "sums for who gives up" check safe given "-DN=2 -DHELPERS=1 -DLEAVE" "kept taken own_taken left completed ended"
start "sums that are given, calls end" check ends given "-DN=2 -DHELPERS=1" "kept taken own_taken found copied completed ended"
start "operators: two rounds, results to the peer's y" check safe ops "-DC=3 -DR=2 -DRESULTS -DPUSH" "reused summed completed"
start "operators: rows that are lent" check safe ops "-DC=3 -DU=2 -DLEND" "reused completed"
start "operators: three ranks, rows that are lent, lists" check safe ops "-DW=3 -DC=1 -DLEND -DLISTS" "met completed"
start "operators: two rounds, lists" check safe ops "-DR=2 -DLISTS" "reused met completed"
start "operators: ranks with more and fewer rounds" check safe ops "-DC=3 -DR=2 -DUNEVEN -DLISTS -DRESULTS" \
    "reused met summed completed"
start "operators: room for one slot" check safe ops "-DC=3 -DR=2 -DPLACES=1 -DRESULTS" "reused summed completed"
start "operators: one live round" check safe ops "-DC=3 -DR=2 -DLIVE=1" "reused completed"
start "operators: nothing to read" check safe ops "-DC=4 -DNOTHING" "reused completed"
start "operators: nothing to read but lists" check safe ops "-DC=4 -DNOTHING -DLISTS" "reused met completed"
start "operators: one rank needs all" check safe ops "-DC=1 -DR=4 -DONEWAY" "reused completed"
start "operators: calls differ" check safe ops "-DR=2 -DDIVERGE" "reused diverged told"
start "operators: calls differ, three ranks" check safe ops "-DW=3 -DDIVERGE" "diverged told"
start "operators: calls differ, nothing to read" check safe ops "-DC=3 -DNOTHING -DDIVERGE" "diverged told"

start "every run ends: three ranks" check ends epoch "-DW=3 -DR=2" "one_shot completed left"
start "every run ends: claims" check ends epoch "-DR=2 -DANYSIZE" "one_shot claim completed left"
start "every run ends: sleep and wake in claims, abort" check ends epoch "-DR=1 -DBELL -DBIG -DABORT" \
    "claim abort failed refused woken"
start "every run ends: doorbell, abort" check ends doorbell "-DR=4 -DABORT" "woken completed abort"
start "every run ends: doorbell with membarrier, abort" check ends doorbell "-DREMOTE_BARRIER -DR=2 -DABORT" \
    "woken completed abort"
start "every run ends: doorbell, two threads of a rank" check ends doorbell "-DTHREADS -DR=2" "woken completed"
start "every run ends: operators" check ends ops "-DC=3 -DRESULTS -DLISTS" "summed met completed"
start "every run ends: operators, calls differ" check ends ops "-DRESULTS -DDIVERGE" "diverged told"

start "finds a slot reused too early" bug safe epoch "-DR=3 -DBUG_EARLY_REUSE" "assertion violated"
start "finds a done stored before the slots are read" bug safe epoch "-DR=3 -DBUG_EARLY_ACK" "slot["
start "finds a slot reused before its owner is done" bug safe epoch "-DR=3 -DBUG_OWN_SLOT" "(mode["
start "finds ready stored before the tag" bug safe epoch "-DR=2 -DBUG_WEAK_ORDER" "(mode["
start "finds a claim round decided on the first look" bug safe epoch "-DR=1 -DBUG_FIRST_LOOK" "(mode["
start "finds a chunk claimed twice" bug safe epoch "-DR=1 -DANYSIZE -DBUG_CLAIM_TWICE" \
    "assertion violated"
start "finds a Wait that returns on claimed chunks" bug safe epoch "-DR=1 -DANYSIZE -DBUG_EARLY_DONE" \
    "assertion violated"
start "finds a failed Wait that returns while chunks run" bug safe epoch "-DR=1 -DBIG -DABORT -DBUG_NO_DRAIN" \
    "$touched"
start "finds health looked at before doing" bug safe epoch "-DR=1 -DBIG -DABORT -DBUG_LATE_DOING" "$touched"
start "finds health not looked at" bug safe epoch "-DR=1 -DBIG -DABORT -DBUG_NO_HEALTH" "$touched"
start "finds a rank that gives up silently" bug safe epoch "-DR=1 -DBIG -DFAULT -DBUG_SILENT" "$hang"
start "finds bad news that win over what happened" bug safe epoch "-DR=1 -DBELL -DABORT -DBUG_NEWS_WINS" \
    "assertion violated  !(held)"
start "finds a sleep without a second look" bug safe epoch "-DR=1 -DBELL -DBUG_NO_RECHECK" "$hang"
start "finds an abort that wakes nobody" bug safe epoch "-DR=1 -DBELL -DABORT -DBUG_NO_ABORT_WAKE" "$hang"
start "finds a waiter without a fence" bug safe doorbell "-DR=2 -DBUG_WEAK_ORDER" "$hang"
start "finds a signaller without a fence" bug safe doorbell "-DR=2 -DBUG_WEAK_SIGNAL" "$hang"
start "finds a waiter without membarrier" bug safe doorbell "-DREMOTE_BARRIER -DR=2 -DBUG_NO_MEMBARRIER" "$hang"
start "finds membarrier before the sleeper is counted" bug safe doorbell \
    "-DREMOTE_BARRIER -DR=2 -DBUG_EARLY_MEMBARRIER" "$hang"
start "finds a bell read after the second look" bug safe doorbell "-DR=2 -DBUG_LATE_BELL" "$hang"
start "finds a wake without a bell" bug safe doorbell "-DR=2 -DBUG_NO_BELL" "$hang"
start "finds a store-buffered sleep without a second look" bug safe doorbell "-DR=2 -DBUG_NO_RECHECK" "$hang"
start "finds a flag in place of the count of sleepers" bug safe doorbell "-DTHREADS -DR=2 -DBUG_FLAG" "$hang"
start "finds a wake for one thread only" bug safe doorbell "-DTHREADS -DR=2 -DBUG_WAKE_ONE" "$hang"
start "finds a spin on a stale bell" bug ends doorbell "-DR=2 -DBUG_STALE_BELL" "non-progress cycle"
start "finds taken stored before the read" bug safe ops "-DR=2 -DBUG_EARLY_TAKEN" "(slot[from]=="
start "finds a slot opened without a look at taken" bug safe ops "-DC=3 -DBUG_NO_TAKEN" "(slot[from]=="
start "finds a slot opened after a look at the own taken" bug safe ops "-DC=3 -DBUG_OWN_TAKEN" "(slot[from]=="
start "finds a place on the board reused too early" bug safe ops "-DR=2 -DLIVE=1 -DBUG_NO_LIMIT" "(slot[from]=="
start "finds sent stored before the data" bug safe ops "-DBUG_EARLY_SENT" "(slot[from]=="
start "finds a result in the y of a rank that has not entered" bug safe ops "-DRESULTS -DPUSH -DBUG_EARLY_PUSH" "lent["
start "finds a sum that two take" bug safe given "-DN=2 -DBUG_NO_TAKE" "assertion violated"
start "finds a sum said to be done too early" bug safe given "-DN=1 -DBUG_EARLY_DONE" "assertion violated"
start "finds a call that ends while sums are taken" bug safe given "-DN=1 -DBUG_END_TAKEN" "assertion violated"
start "finds a sum without the partials of a peer" bug safe given "-DN=1 -DBUG_NOT_KNOWN" "assertion violated"
start "finds sums for who has given up" bug safe given "-DN=1 -DABORT -DBUG_NO_HEALTH" "assertion violated"
start "finds a sum taken to a y after it is done" bug safe given "-DN=1 -DBUG_LATE_DELIVERY" "assertion violated"
start "finds a copy left out because of no mark" bug safe given "-DN=1 -DBUG_SKIP_UNKNOWN" "assertion violated"
start "finds a sum that nobody takes" bug safe given "-DN=1 -DHELPERS=1 -DBUG_NOT_OWN" "$hang"
start "finds a slot reused while others sum for its reader" bug safe given "-DN=1 -DBUG_TAKEN_ALONE" "assertion violated"
start "finds a result told before it is in y" bug safe ops "-DRESULTS -DPUSH -DBUG_EARLY_RESULT" "(y["
start "finds rows that are lent for too short" bug safe ops "-DLEND -DBUG_END_EARLY" "lent["
start "finds sent counting units as they end" bug safe ops "-DU=2 -DBUG_ANY_ORDER" "(slot[from]=="
start "finds a read from a rank that calls something else" bug safe ops "-DDIVERGE -DBUG_NO_LOOK" "(slot[from]=="
start "finds one entry in place of two" bug safe ops "-DBUG_ONE_ENTRY" "assertion violated ((entry["
start "finds entered stored before the entry" bug safe ops "-DBUG_EARLY_ENTERED" "assertion violated ((entry["
start "finds a call that ends before all have entered" bug safe ops "-DC=3 -DNOTHING -DBUG_END_ALONE" \
    "assertion violated ((entry["
start "finds a call that ends well although it differs" bug safe ops "-DNOTHING -DDIVERGE -DBUG_END_ALONE" \
    "(call!=when)"
start "finds a list given up before it is read" bug safe ops "-DC=3 -DNOTHING -DLISTS -DBUG_EARLY_PASS" \
    "assertion violated ((slot["
start "finds a first slot that waits for all to enter" bug safe ops "-DBUG_LATE_OPEN" "$hang"
start "finds taken that stops at the last round needed" bug safe ops \
    "-DC=1 -DR=4 -DPLACES=1 -DONEWAY -DBUG_SHORT_READS" "$hang"
start "finds a line that is never reached" blind safe epoch "-DR=1" "abort"

wait
passed=$(find "$tmp" -name '*.ok' | wc -l)
echo "$passed passed, $((total - passed)) failed"
[ "$passed" -eq "$total" ] && [ "$total" -gt 0 ]
