#!/usr/bin/env bash
# Builds and runs the benchmarks; each prints its configuration, its limit and the spread.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
all=(apply codecs push_pull lane workers embedding partitions all_reduce end_to_end checkpoint failover catch_up migrate coordinator scale input python)
known=("${all[@]}" gpu)

usage() {
  cat <<EOF
usage: bash bench/run.sh [NAME...] [--json FILE] [-- OPTIONS OF THE BENCHMARK]

  NAME         benchmarks to run in full. Without any: all but gpu, with smaller sizes for the long ones,
               under ten minutes together on two cores
  --json FILE  write all rows as one JSON array of {bench, case, value, unit, limit, ratio};
               ratio >= 1 is always good
  -- ...       options of every named benchmark, such as -- --case latency --transport shm

  apply        the engine's passes over a dense table
  codecs       encoding and decoding of gradients
  push_pull    pushes and pulls of 4 KiB to 64 MiB, in full precision and in 16 bits
  lane         one lane, nothing applied
  workers      1 to 256 clients; a quiet one beside one that pushes
  embedding    10^7 rows: load, push, look up, export (-- --case tier: beyond memory)
  partitions   how evenly partitions spread a Zipf load, whole and split
  all_reduce   beside MPI_Allreduce; without OpenMPI it is skipped, with a message
  end_to_end   verbena-train beside its own --local
  checkpoint   saves, restores, training beside a save
  failover     SIGKILL of a server; two replicas
  catch_up     servers that come back under full load
  migrate      planned moves of all partitions under full load
  coordinator  changes of the cluster, by the number of members that watch
  scale        calls of a cluster with many tables, jobs, clients and checkpoints, by their number
  input        looking through and streaming files, beside cat
  python       a push_pull from Python, beside the call in C; skipped without pybind11
  gpu          needs a GPU: tests/gpu/run.sh makes a file for a machine that has one

One that is skipped or fails does not stop the others; the exit status is the last failure's.
Over verbs on a machine without an RDMA device: bash bench/lane/softroce.sh
EOF
}

# Options of a benchmark when all are run; none of them changes the meaning of a row.
quick_options() {
  case "$1" in
    apply) printf '%s\n' --mib 128 ;;
    push_pull) printf '%s\n' --largest 4194304 --case throughput latency crowded idle ;;
    lane) printf '%s\n' --size 65536,262144 --seconds 1 ;;
    workers) printf '%s\n' --clients 64,256 --repeats 3 ;;
    checkpoint) printf '%s\n' --quick --repeats 3 ;;
    failover) printf '%s\n' --kills 10 --repeats 3 ;;
    catch_up) printf '%s\n' --repeats 1 ;;
    migrate) printf '%s\n' --repeats 1 --dense-mib 256 --rows 1000000 ;;
    input) printf '%s\n' --mib 128 --repeats 3 ;;
    python) printf '%s\n' --share 0.3 ;;
    coordinator) printf '%s\n' --workers 100,1000 ;;
  esac
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
quick=false
[ "${#names[@]}" -gt 0 ] || { names=("${all[@]}"); quick=true; }
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
targets=() runnable=()
for name in "${names[@]}"; do
  if [ "$name" = all_reduce ]; then
    if ! command -v mpirun >/dev/null || ! command -v mpicc >/dev/null; then
      printf 'bench/run.sh: all_reduce: skipped, no OpenMPI: apt-get install --no-install-recommends %s\n' \
        "$(package_list bench | paste -sd ' ')" >&2
      continue
    fi
    # It may have come after the build was configured.
    grep -q '^build bench_all_reduce:' "$build/build.ninja" || cmake -S "$root" --preset release >/dev/null
  fi
  if [ "$name" = python ] && ! grep -q '^build bench_python:' "$build/build.ninja"; then
    printf 'bench/run.sh: python: skipped, it was configured without the Python package: %s\n' \
      "apt-get install --no-install-recommends python3-dev pybind11-dev python3-pybind11 python3-numpy" >&2
    continue
  fi
  targets+=("bench_$name") runnable+=("$name")
done
ninja -C "$build" --quiet verbenad "${targets[@]}"

rows=$(mktemp -d)
trap 'rm -rf "$rows"' EXIT
status=0
for name in "${runnable[@]}"; do
  with=()
  case "$name" in
    apply|codecs|lane|partitions) ;;
    python) with=(--verbenad "$build/verbenad" --python "$(cat "$build/python/interpreter")"
                  --package "$build/python" --script "$root/bench/python/calls.py"
                  --library "$build/bench/libbench_python_calls.so") ;;
    end_to_end) with=(--verbenad "$build/verbenad" --train "$build/verbena-train") ;;
    *) with=(--verbenad "$build/verbenad") ;;
  esac
  if [ "$name" = end_to_end ] && [ -n "${VERBENA_TEST_DATA:-}" ]; then
    with+=(--a9a "$VERBENA_TEST_DATA/a9a")
  fi
  if "$quick"; then mapfile -t -O "${#with[@]}" with < <(quick_options "$name"); fi
  printf '\n== %s\n' "$name"
  "$build/bench/$name" "${with[@]}" --json "$rows/$name.json" "${extra[@]}" || status=$?
done
if [ -n "$json" ]; then
  # Each file is an array with a row a line: their rows make one array.
  rows_of_all=$({ cat "$rows"/*.json 2>/dev/null || true; } | { grep -E '^ *\{' | sed 's/,$//' || true; } | sed '$!s/$/,/')
  printf '[\n%s\n]\n' "$rows_of_all" >"$json"
fi
exit "$status"
