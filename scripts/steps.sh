# SPDX-License-Identifier: Apache-2.0
# Steps of a test run, sourced: what ran is shown in one line each and counted, with the log of what failed.
# `step` runs a command and waits for it. `start` runs it beside others, `lanes` of them at a time: most test
# programs wait more than they compute. `finish` waits for all and ends the script with "N passed, N failed".

lanes=$(($(nproc) / 2 + 2))
logs=$(mktemp -d)
passed=0
failed=0
skipped=0
failures=()
skips=()
steps=0
declare -A running=() # the folder of each started process
set -m                # started processes must not ignore SIGINT, which some of them test
trap 'stop_running; rm -rf "$logs"' EXIT
trap 'exit 1' INT TERM HUP

# ---- Running ----------------------------------------------------------------------------------------

# run_in FOLDER NAME COMMAND...: leaves the log, the exit status and the seconds there. step_seconds: its
# limit (900).
run_in() {
    local folder=$1 begin=$SECONDS status=0
    mkdir "$folder" && echo "$2" >"$folder/name"
    shift 2
    timeout -k 5 "${step_seconds:-900}" "$@" >"$folder/log" 2>&1 </dev/null || status=$?
    echo "$status $((SECONDS - begin))" >"$folder/end"
}

# step NAME COMMAND...: one test. A program that ends with "N passed, N failed, N skipped" counts as its
# cases, anything else as one; exit status 77 is a skip.
step() {
    local folder=$logs/$((++steps))
    run_in "$folder" "$@"
    judge "$folder"
}

# start NAME COMMAND...: a step whose result is counted later.
start() {
    local folder=$logs/$((++steps))
    while [ ${#running[@]} -ge "$lanes" ]; do reap; done
    run_in "$folder" "$@" &
    running[$!]=$folder
}

# reap: waits for one of the started steps and counts those that have ended.
reap() {
    local pid
    wait -n "${!running[@]}"
    for pid in "${!running[@]}"; do
        if [ -s "${running[$pid]}/end" ] || ! kill -0 "$pid" 2>/dev/null; then
            judge "${running[$pid]}"
            unset "running[$pid]"
        fi
    done
}

# The end of an interrupted run: `timeout`, the child of each started process, ends all that it has started.
stop_running() {
    local pid
    for pid in "${!running[@]}"; do
        # shellcheck disable=SC2046
        kill $(cat "/proc/$pid/task/$pid/children" 2>/dev/null) "$pid" 2>/dev/null
    done
}

# ---- Counting ---------------------------------------------------------------------------------------

# judge FOLDER: counts and shows what ran there; 0 if nothing failed.
judge() {
    local name log="$1/log" status=1 seconds=0 summary p=0 f=0 s=0
    name=$(cat "$1/name")
    [ -s "$1/end" ] && read -r status seconds <"$1/end"
    summary=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1)
    if [ -n "$summary" ]; then
        read -r p _ f _ s _ <<<"$summary"
        while IFS= read -r line; do failures+=("$name: $line"); done < <(sed -n 's/^not ok [0-9]* - //p' "$log")
        while IFS= read -r line; do skips+=("$name: $line"); done < <(sed -n 's/^ok [0-9]* - \(.*\) # SKIP \(.*\)/\1: \2/p' "$log")
    elif [ "$status" -eq 77 ]; then
        s=1
        skips+=("$name: $(tail -n 1 "$log")")
    elif [ "$status" -eq 0 ]; then
        p=1
    fi
    if [ "$status" -ne 0 ] && [ "$status" -ne 77 ] && [ "$f" -eq 0 ]; then
        f=1
        failures+=("$name: exit status $status")
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    show "$name" "$p" "$f" "$s" "$seconds"
    [ "$f" -eq 0 ] || grep -vE '^ok |^# not selected|^-- |^\[ *[0-9]+%\]' "$log" | tail -n 100 | sed 's/^/    /'
    rm -rf "$1"
    [ "$f" -eq 0 ]
}

# show NAME PASSED FAILED SKIPPED SECONDS
show() {
    local result="ok"
    [ "$4" -gt 0 ] && result="ok, $4 skipped"
    [ "$2" -eq 0 ] && [ "$4" -gt 0 ] && result="skipped"
    [ "$3" -gt 0 ] && result="FAILED"
    printf '%-44s %4d  %-16s %3ds\n' "$1" "$(($2 + $3 + $4))" "$result" "$5"
}

skip() {
    skipped=$((skipped + 1))
    skips+=("$1: $2")
    show "$1" 0 0 1 0
}

finish() {
    local tail=""
    while [ ${#running[@]} -gt 0 ]; do reap; done
    [ $skipped -gt 0 ] && printf 'skipped  %s\n' "${skips[@]}" && tail=", $skipped skipped"
    [ $failed -gt 0 ] && printf 'FAILED   %s\n' "${failures[@]}"
    echo "$passed passed, $failed failed$tail"
    [ $failed -eq 0 ]
    exit
}
