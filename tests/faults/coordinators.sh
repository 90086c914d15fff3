#!/usr/bin/env bash
# Runs all failures of coordinators and etcd under training. `--help` says which.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

usage() {
  cat <<'USAGE'
usage: bash tests/faults/coordinators.sh [KILLS] [--seed N] [--build DIR]

Starts three members of etcd (Debian's etcd-server), three coordinators and three servers, and trains an async
and a sync table all the while. Meanwhile: etcd's leader is killed; is stopped for 30 s; a follower of etcd is
killed; etcd's quorum is lost for 10 s; etcd is compacted; etcd's space is full; and coordinators are killed at
random, KILLS (default 50) of them, leaders and standbys. Prints the time of each change of the leader, from its
death to the answer of a call that changes something, and the load of the machine.

Fails if a call fails, a member's lease ends, a pushed integer is not in the sums exactly once, the answers of
the coordinators are not linearizable, or the p99 of the changes is above etcd's lease (3 s) and half a second.
The programs are those of DIR (default build/release). N repeats a choice of kills, not the times of a run.
USAGE
}
wrong() { printf 'coordinators.sh: %s (see --help)\n' "$*" >&2; exit 2; }

kills="" seed="" build=$root/build/release
while [ "$#" -gt 0 ]; do
  case "$1" in
    --seed) [ "$#" -ge 2 ] || wrong "--seed wants a number"; seed=$2; shift ;;
    --build) [ "$#" -ge 2 ] || wrong "--build wants a folder"; build=$2; shift ;;
    --help|-h) usage; exit 0 ;;
    -*) wrong "$1 is unknown" ;;
    *) [ -z "$kills" ] || wrong "KILLS is given twice: '$kills' and '$1'"; kills=$1 ;;
  esac
  shift
done
kills=${kills:-50}
[[ $kills =~ ^[1-9][0-9]{0,4}$ ]] || wrong "KILLS is '$kills'; wanted: how many coordinators are killed"
[[ $seed =~ ^[0-9]{0,18}$ ]] || wrong "--seed is '$seed'; wanted: a number"
program=$build/tests/faults/coordinators_test
for needed in "$program" "$build/verbenad" "$build/verbena"; do
  [ -x "$needed" ] || wrong "there is no $needed: build it first"
done

[ -z "$seed" ] || export VERBENA_SEED=$seed
export VERBENA_COORDINATOR_KILLS=$kills VERBENA_VERBENAD=$build/verbenad VERBENA_CLI=$build/verbena
printf 'before: %s\n' "$(uptime)"
# It ends by itself; the limit is for a run that does not.
timeout --kill-after=60 $((600 + 60 * kills)) "$program" --use-colour no '[.campaign]'
status=$?
printf 'after: %s, %d s\n' "$(uptime)" "$SECONDS"
exit "$status"
