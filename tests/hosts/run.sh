#!/usr/bin/env bash
# Runs tests on several hosts without having them: network namespaces on one bridge, each with an
# address of its own. `--help` lists the options, README.md how to add a case.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source_folder=$(cd "$here/../.." && pwd)

usage() {
  cat <<'USAGE'
usage: bash tests/hosts/run.sh [OPTIONS] [CASE...]

Makes five hosts (network namespaces) on one network and runs the cases on them: by default all.

  --build DIR    where the programs were built (default build/release)
  --quick        without the cases marked "when: nightly", unless VERBENA_NIGHTLY is 1 (tests/run.sh --nightly)
  --verbose      show the output of cases while they run (otherwise: of those that fail)
  --list         show the cases and end
  --keep         keep the folder with the logs of cases, and name it

Prints a line a case. The exit status is the number of cases that failed, or 77 when this machine
cannot run it, with the reason. It has to be root; what it makes, it removes.
USAGE
}
say() { printf 'hosts: %s\n' "$*" >&2; }
wrong() { say "$* (see --help)"; exit 2; }

build=$source_folder/build/release quick=0 verbose=0 list=0 keep=0 cases=()
while [ "$#" -gt 0 ]; do
  case "$1" in
    --build) [ "$#" -ge 2 ] || wrong "$1 wants a value"; build=$2; shift ;;
    --quick) quick=1 ;;
    --verbose) verbose=1 ;;
    --list) list=1 ;;
    --keep) keep=1 ;;
    --help|-h) usage; exit 0 ;;
    -*) wrong "unknown option '$1'" ;;
    *) [ -f "$here/cases/$1.sh" ] || wrong "there is no case '$1'; --list shows them"; cases+=("$1") ;;
  esac
  shift
done
# shellcheck source=tests/support/case_header.sh
. "$here/../support/case_header.sh"
if [ "$list" -eq 1 ] || [ "${#cases[@]}" -eq 0 ]; then
  for file in "$here"/cases/*.sh; do
    name=$(basename "$file" .sh)
    wanted "$name" "$((quick && ! list))" && cases+=("$name")
  done
fi
if [ "$list" -eq 1 ]; then
  for name in "${cases[@]}"; do
    printf '%-16s limit %4s s, %s\n' "$name" "$(header "$name" limit 60)" "$(header "$name" when always)"
  done
  exit 0
fi

# ---- requirements of this machine ----------------------------------------------------------------
# shellcheck source=deploy/packages.sh
. "$source_folder/deploy/packages.sh"
PATH=$PATH:/usr/sbin:/sbin
if [ "$(id -u)" -ne 0 ]; then say "skipped: only root makes network namespaces"; exit 77; fi
if ! ensure_packages hosts; then say "skipped: packages are missing"; exit 77; fi
for program in verbenad verbena-train; do
  [ -x "$build/$program" ] || { say "$program is not built in $build"; exit 1; }
done
build=$(realpath "$build")

# ---- the network ---------------------------------------------------------------------------------
work=$(mktemp -d "${TMPDIR:-/tmp}/verbena-hosts.XXXXXX")
NET=verbena-$$
hosts=6
remove_network() {
  local n
  for n in $(seq 0 "$hosts"); do
    # Processes that a case left running would keep the namespace.
    ip netns pids "$NET-$n" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
    ip netns del "$NET-$n" 2>/dev/null || true
  done
}
# shellcheck disable=SC2317 # called by the trap
end() {
  remove_network
  if [ "$keep" -eq 1 ]; then say "logs are in $work"; else rm -rf "$work"; fi
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# Namespace 0 has the bridges, with ports portN and railN to host N; nothing of this machine's own
# network changes.
make_network() {
  local n
  ip netns add "$NET-0" || return 1
  ip -n "$NET-0" link add bridge type bridge || return 1
  ip -n "$NET-0" link add second type bridge || return 1
  ip -n "$NET-0" link set bridge up
  ip -n "$NET-0" link set second up
  for n in $(seq 1 "$hosts"); do
    ip netns add "$NET-$n"
    ip link add eth0 netns "$NET-$n" type veth peer name "port$n" netns "$NET-0" || return 1
    ip link add eth1 netns "$NET-$n" type veth peer name "rail$n" netns "$NET-0" || return 1
    ip -n "$NET-0" link set "port$n" master bridge up
    ip -n "$NET-0" link set "rail$n" master second up
    ip -n "$NET-$n" addr add "10.77.0.$n/24" dev eth0
    ip -n "$NET-$n" addr add "fd77::$n/64" dev eth0 nodad
    ip -n "$NET-$n" addr add "10.78.0.$n/24" dev eth1
    ip -n "$NET-$n" link set lo up
    ip -n "$NET-$n" link set eth0 up
    ip -n "$NET-$n" link set eth1 up
  done
}
if ! make_network 2>"$work/network.log"; then
  say "skipped: this machine makes no network namespaces: $(tail -n 1 "$work/network.log")"
  exit 77
fi
remove_network

# ---- the cases -----------------------------------------------------------------------------------
export HOSTS=$here SOURCE=$source_folder BUILD=$build NET WORK=$work
failures=0
for name in "${cases[@]}"; do
  limit=$(header "$name" limit 60)
  make_network
  mkdir "$work/$name"
  log=$work/$name/log
  : >"$log"
  started=$SECONDS status=0
  (cd "$work/$name" && exec timeout --kill-after 5 "$limit" bash -euo pipefail "$here/cases/$name.sh") \
    >"$log" 2>&1 &
  case_pid=$!
  follower=""
  if [ "$verbose" -eq 1 ]; then tail -f --pid "$case_pid" "$log" & follower=$!; fi
  wait "$case_pid" || status=$?
  [ -z "$follower" ] || wait "$follower" || true
  remove_network
  case "$status" in
    0) printf 'passed  %-14s %3d s\n' "$name" "$((SECONDS - started))" ;;
    124|137) printf 'FAILED  %-14s took more than %s s\n' "$name" "$limit" ;;
    *) printf 'FAILED  %-14s exit status %d\n' "$name" "$status" ;;
  esac
  if [ "$status" -ne 0 ]; then
    failures=$((failures + 1))
    [ "$verbose" -eq 1 ] || cat "$log"
  fi
done
exit "$failures"
