#!/usr/bin/env bash
# Builds and runs the benchmarks; each prints its configuration, its limit and the spread.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
all=(apply codecs push_pull lane embedding checkpoint failover)
known=("${all[@]}" gpu)

usage() {
  cat <<EOF
usage: bash bench/run.sh [NAME...] [--json FILE] [-- OPTIONS OF THE BENCHMARK]

  NAME         ${all[*]} (default: all of these, checkpoint
               --quick); gpu, which wants one (tests/gpu/run.sh makes a file for a machine that has
               one)
  --json FILE  write all rows as one JSON array of {bench, case, value, unit, limit, ratio};
               ratio >= 1 is always good
  -- ...       handed to every benchmark named, such as -- --case latency --transport shm

Over verbs on a machine without an RDMA device: bash bench/lane/softroce.sh
EOF
}

names=() json="" extra=()
while [ "$#" -gt 0 ]; do
  case "$1" in
    --json) [ "$#" -ge 2 ] || { usage >&2; exit 2; }; json=$2; shift ;;
    --help|-h) usage; exit 0 ;;
    --) shift; extra=("$@"); break ;;
    -*) printf 'bench/run.sh: unknown option "%s"\n' "$1" >&2; usage >&2; exit 2 ;;
    *) names+=("$1") ;;
  esac
  shift
done
quick=()
[ "${#names[@]}" -gt 0 ] || { names=("${all[@]}"); quick=(--quick); }
for name in "${names[@]}"; do
  case " ${known[*]} " in
    *" $name "*) ;;
    *) printf 'bench/run.sh: no benchmark "%s"; there are: %s\n' "$name" "${known[*]}" >&2; exit 2 ;;
  esac
done

# shellcheck source=deploy/packages.sh
. "$root/deploy/packages.sh"
ensure_packages build
build=$root/build/release
[ -f "$build/build.ninja" ] || cmake -S "$root" --preset release >/dev/null
ninja -C "$build" --quiet verbenad "${names[@]/#/bench_}"

rows=$(mktemp -d)
trap 'rm -rf "$rows"' EXIT
status=0
for name in "${names[@]}"; do
  with=()
  case "$name" in
    apply|codecs|lane) ;;
    *) with=(--verbenad "$build/verbenad") ;;
  esac
  [ "$name" != checkpoint ] || with+=("${quick[@]}")
  "$build/bench/$name" "${with[@]}" --json "$rows/$name.json" "${extra[@]}" || status=$?
done
if [ -n "$json" ]; then
  # Each file is an array with a row a line: their rows make one array.
  rows_of_all=$(cat "$rows"/*.json | grep -E '^ *\{' | sed 's/,$//' | sed '$!s/$/,/')
  printf '[\n%s\n]\n' "$rows_of_all" >"$json"
fi
exit "$status"
