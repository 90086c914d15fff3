#!/usr/bin/env bash
# Runs random_faults with one seed after the other. `--help` lists the options.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

usage() {
  cat <<'USAGE'
usage: bash tests/faults/soak.sh N [--first SEED] [--each F] [--build DIR] [OPTION VALUE]...

Brings about N faults (200, say): F of them (default 20) in each run of random_faults, whose seeds count from SEED
(default 1). Further options go to random_faults (its --help lists them). The programs are those of
DIR (default build/release). Prints what each run prints; a run that fails says how to replay it, and
the next one follows. The exit status is 0 only when all passed.
USAGE
}
wrong() { printf 'soak.sh: %s (see --help)\n' "$*" >&2; exit 2; }

faults="" seed=1 each=20 build=$root/build/release options=()
while [ "$#" -gt 0 ]; do
  case "$1" in
    --first) [ "$#" -ge 2 ] || wrong "--first wants a seed"; seed=$2; shift ;;
    --each) [ "$#" -ge 2 ] || wrong "--each wants a number"; each=$2; shift ;;
    --build) [ "$#" -ge 2 ] || wrong "--build wants a folder"; build=$2; shift ;;
    --help|-h) usage; exit 0 ;;
    --no-*) options+=("$1") ;;
    -*) [ "$#" -ge 2 ] || wrong "$1 wants a value"; options+=("$1" "$2"); shift ;;
    *) [ -z "$faults" ] || wrong "N is given twice: '$faults' and '$1'"; faults=$1 ;;
  esac
  shift
done
[[ $faults =~ ^[1-9][0-9]{0,6}$ ]] || wrong "N is '$faults'; wanted: how many faults"
[[ $seed =~ ^[0-9]{1,9}$ ]] || wrong "--first is '$seed'; wanted: a number"
[[ $each =~ ^[1-9][0-9]{0,4}$ ]] || wrong "--each is '$each'; wanted: how many faults a run has"
program=$build/tests/faults/random_faults
[ -x "$program" ] || wrong "there is no $program: build it first"

began=$SECONDS runs=0 failed=()
for ((left = faults; left > 0; left -= each, seed += 1)); do
  now=$((left < each ? left : each))
  printf -- '--- random_faults --seed %d --faults %d %s\n' "$seed" "$now" "${options[*]}"
  runs=$((runs + 1))
  # It ends by itself (--limit-s); the second limit is for a run that does not.
  timeout --kill-after=60 $((300 + 30 * now)) \
    "$program" --seed "$seed" --faults "$now" "${options[@]}" || failed+=("$seed")
done
printf '%d faults in %d runs, %d s' "$faults" "$runs" $((SECONDS - began))
[ "${#failed[@]}" -eq 0 ] && { printf ': all passed\n'; exit 0; }
printf '; FAILED with seeds: %s\n' "${failed[*]}"
exit 1
