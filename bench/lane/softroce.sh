#!/usr/bin/env bash
# Runs `lane --transport verbs` on a real RDMA stack without a NIC: in the guest of tests/softroce,
# beside perftest on the same soft-RoCE device. The processors are emulated, so only the ratio
# to perftest is meaningful.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$root/build/release limit=1800 json="" options=()

usage() {
  cat <<'USAGE'
usage: bash bench/lane/softroce.sh [--build DIR] [--limit SECONDS] [--json FILE] [OPTIONS OF lane...]

  --build DIR      where bench/lane was built (default build/release)
  --limit SECONDS  for all of it (default 1800)
  --json FILE      write the rows there
  OPTIONS          such as --case write --size 65536,262144 --runs 7 --seconds 3

The exit status is lane's, or 77 when this machine cannot boot the guest, with the reason.
USAGE
}
while [ "$#" -gt 0 ]; do
  case "$1" in
    --build|--limit|--json) [ "$#" -ge 2 ] || { usage >&2; exit 2; } ;;
  esac
  case "$1" in
    --build) build=$(realpath -m "$2"); shift ;;
    --limit) limit=$2; shift ;;
    --json) json=$2; shift ;;
    --help|-h) usage; exit 0 ;;
    *) options+=("$1") ;;
  esac
  shift
done
program=$build/bench/lane
[ -x "$program" ] || { printf 'softroce.sh: %s is not built\n' "$program" >&2; exit 1; }

# The guest's file system is its own: the rows come back between two lines of its output.
mark="--- rows ---"
command=$(printf '%q ' "$program" --transport verbs --json /tmp/rows.json "${options[@]}")
command+="; status=\$?; echo '$mark'; cat /tmp/rows.json; echo '$mark'; exit \$status"

output=$(mktemp)
trap 'rm -f "$output"' EXIT
status=0
bash "$root/tests/softroce/run.sh" --build "$build" --copy "$program" --limit "$limit" \
  --shell "$command" | tee "$output" | sed "/^$mark\$/,/^$mark\$/d" || status=$?
if [ -n "$json" ]; then
  sed -n "/^$mark\$/,/^$mark\$/{/^$mark\$/d;p}" "$output" >"$json"
fi
exit "$status"
