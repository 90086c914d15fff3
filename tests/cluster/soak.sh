#!/usr/bin/env bash
# Runs the simulator's scenarios under faults with many seeds. `--help` lists the options.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

usage() {
  cat <<'USAGE'
usage: bash tests/cluster/soak.sh N [--first S] [--build DIR] [--jobs J] [NAME]

Runs the seeds 1 to N, or S to N, of every test with "under faults" in its name, or of NAME
(Catch2's wildcards), in J processes at a time (default: one for each processor), with the programs
of DIR (default build/release). Prints a line for every range of seeds that has passed, and what a
seed shows that fails (VERBENA_SEED=S replays it); the seeds after it run all the same. The exit
status is 0 only when all passed.
USAGE
}
wrong() { printf 'soak.sh: %s (see --help)\n' "$*" >&2; exit 2; }

seeds="" from=1 build=$root/build/release jobs=$(nproc) name="*under faults*"
while [ "$#" -gt 0 ]; do
  case "$1" in
    --first) [ "$#" -ge 2 ] || wrong "--first wants a seed"; from=$2; shift ;;
    --build) [ "$#" -ge 2 ] || wrong "--build wants a folder"; build=$2; shift ;;
    --jobs) [ "$#" -ge 2 ] || wrong "--jobs wants a number"; jobs=$2; shift ;;
    --help|-h) usage; exit 0 ;;
    -*) wrong "unknown option '$1'" ;;
    *) if [ -z "$seeds" ]; then seeds=$1; else name=$1; fi ;;
  esac
  shift
done
[[ $seeds =~ ^[1-9][0-9]{0,8}$ ]] || wrong "N is '$seeds'; wanted: how many seeds"
if ! [[ $from =~ ^[1-9][0-9]{0,8}$ ]] || [ "$from" -gt "$seeds" ]; then
  wrong "--first is '$from'; wanted: 1 to N"
fi
[[ $jobs =~ ^[1-9][0-9]{0,2}$ ]] || wrong "--jobs is '$jobs'; wanted: 1 to 999"
programs=()
for program in cluster_test cluster_replicas_test cluster_norm_test cluster_checkpoint_test \
  cluster_swarm_test; do
  path=$build/tests/cluster/$program
  [ -x "$path" ] || wrong "there is no $path: build it first"
  # Catch2's exit status is how many there are.
  if ! "$path" --list-test-names-only "$name" >/dev/null 2>&1; then programs+=("$path"); fi
done
[ "${#programs[@]}" -gt 0 ] || wrong "no test is called '$name'"

step=200
began=$SECONDS
# A seed that fails ends its program: the rest of the range runs in another one.
# shellcheck disable=SC2317  # called by xargs
run() {  # PROGRAM FIRST LAST
  local program first=$2 output seed failed=0
  program=$(basename "$1")
  while [ "$first" -le "$3" ]; do
    if output=$(VERBENA_FIRST_SEED=$first VERBENA_SEEDS=$3 "$1" --use-colour no "$name" 2>&1); then
      printf 'ok      %-18s seeds %d to %d\n' "$program" "$first" "$3"
      break
    fi
    failed=1
    # The seed that its replay command names; without one it has crashed, in an unknown seed.
    seed=$(grep -o 'VERBENA_SEED=[0-9]*' <<<"$output" | tail -1 | cut -d= -f2)
    if [ -z "$seed" ]; then
      printf 'FAILED  %-18s seeds %d to %d\n%s\n' "$program" "$first" "$3" "$(tail -20 <<<"$output")"
      break
    fi
    printf 'FAILED  %-18s seed %d\n%s\n' "$program" "$seed" "$(grep -w "seed $seed:" <<<"$output" | head -20)"
    first=$((seed + 1))
  done
  return "$failed"
}
export -f run
export name
for program in "${programs[@]}"; do
  for ((first = from; first <= seeds; first += step)); do
    last=$((first + step - 1))
    printf '%s\0%d\0%d\0' "$program" "$first" $((last < seeds ? last : seeds))
  done
done | xargs -0 -n 3 -P "$jobs" bash -c 'run "$@"' run
status=$?
printf '%d seeds of each, %d s\n' $((seeds - from + 1)) $((SECONDS - began))
exit $((status == 0 ? 0 : 1))
