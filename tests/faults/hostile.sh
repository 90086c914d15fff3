#!/usr/bin/env bash
# Runs hostile with one seed after the other, for as long as it is given. `--help` lists the options.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

usage() {
  cat <<'USAGE'
usage: bash tests/faults/hostile.sh SECONDS [--first SEED] [--each S] [--build DIR] [OPTION VALUE]...

Runs hostile for SECONDS (3600, say): S seconds (default 60) with hostile peers in each run, whose seeds
count from SEED (default 1). Further options go to hostile (its --help lists them). The programs are those
of DIR (default build/release). Prints what each run prints; a run that fails says how to replay it, and the
next one follows. The exit status is 0 only when all passed.
USAGE
}
wrong() { printf 'hostile.sh: %s (see --help)\n' "$*" >&2; exit 2; }

time="" seed=1 each=60 build=$root/build/release options=()
while [ "$#" -gt 0 ]; do
  case "$1" in
    --first) [ "$#" -ge 2 ] || wrong "--first wants a seed"; seed=$2; shift ;;
    --each) [ "$#" -ge 2 ] || wrong "--each wants a number of seconds"; each=$2; shift ;;
    --build) [ "$#" -ge 2 ] || wrong "--build wants a folder"; build=$2; shift ;;
    --help|-h) usage; exit 0 ;;
    -*) [ "$#" -ge 2 ] || wrong "$1 wants a value"; options+=("$1" "$2"); shift ;;
    *) [ -z "$time" ] || wrong "SECONDS is given twice: '$time' and '$1'"; time=$1 ;;
  esac
  shift
done
[[ $time =~ ^[1-9][0-9]{0,6}$ ]] || wrong "SECONDS is '$time'; wanted: a number"
[[ $seed =~ ^[0-9]{1,9}$ ]] || wrong "--first is '$seed'; wanted: a number"
[[ $each =~ ^[1-9][0-9]{0,5}$ ]] || wrong "--each is '$each'; wanted: a number of seconds"
program=$build/tests/faults/hostile
[ -x "$program" ] || wrong "there is no $program: build it first"

runs=0 failed=()
while [ "$SECONDS" -lt "$time" ]; do
  printf -- '--- hostile --seed %d --seconds %d %s\n' "$seed" "$each" "${options[*]}"
  runs=$((runs + 1))
  # It ends by itself; the limit is for a run that does not.
  timeout --kill-after=60 $((each + 300)) \
    "$program" --seed "$seed" --seconds "$each" "${options[@]}" || failed+=("$seed")
  seed=$((seed + 1))
done
printf '%d runs, %d s' "$runs" "$SECONDS"
[ "${#failed[@]}" -eq 0 ] && { printf ': all passed\n'; exit 0; }
printf '; FAILED with seeds: %s\n' "${failed[*]}"
exit 1
