#!/usr/bin/env bash
# The tests and the benchmark on a GPU. `--help` lists the options.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

usage() {
  cat <<'USAGE'
usage: bash tests/gpu/run.sh [--build DIR] [--bundle FILE]

Makes one file of all that the tests and the benchmark of GPUs need (programs, libraries, the loader),
and runs it here if this machine has a GPU. Elsewhere it says so and how to run the file on a machine
that has one, which needs NVIDIA's driver and nothing else; the exit status is then 77.

  --build DIR    the programs of this build (default: builds them in build/release, installing what is
                 missing)
  --bundle FILE  where to put it (default: DIR/verbena-gpu.tar.gz)
USAGE
}
wrong() { printf 'tests/gpu/run.sh: %s (see --help)\n' "$*" >&2; exit 2; }
die() { printf 'tests/gpu/run.sh: %s\n' "$*" >&2; exit 1; }

build="" bundle=""
while [ "$#" -gt 0 ]; do
  case "$1" in
    --build) [ "$#" -ge 2 ] || wrong "--build wants a folder"; build=$2; shift ;;
    --bundle) [ "$#" -ge 2 ] || wrong "--bundle wants a file"; bundle=$2; shift ;;
    --help|-h) usage; exit 0 ;;
    *) wrong "unknown option '$1'" ;;
  esac
  shift
done

if [ -z "$build" ]; then
  # shellcheck source=deploy/packages.sh
  . "$root/deploy/packages.sh"
  ensure_packages build || exit 1
  build=$root/build/release
  [ -f "$build/build.ninja" ] || cmake -S "$root" --preset release >/dev/null || exit 1
  ninja -C "$build" --quiet verbenad gpu_test bench_gpu verbena_shared || exit 1
fi
if [ -z "$bundle" ] && [ ! -x "$build/bench/gpu" ] && ! command -v nvidia-smi >/dev/null; then
  printf 'there is no GPU here, and %s lacks programs of the bundle: build the target bench_gpu to make it\n' "$build"
  exit 77
fi
bundle=${bundle:-$build/verbena-gpu.tar.gz}

# ---- the bundle ----------------------------------------------------------------------------------
programs=("$build/verbenad" "$build/tests/gpu/gpu_test" "$build/bench/gpu")
for program in "${programs[@]}"; do
  [ -x "$program" ] || die "there is no $program: build it first"
done
libraries_of() {  # PROGRAM: lines "name => path (address)" of ldd
  ldd "$1" | sed -nE 's/.*=> (\/[^ ]+) .*/\1/p'
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=$work/verbena-gpu
mkdir -p "$folder/bin" "$folder/programs" "$folder/lib"
for program in "${programs[@]}"; do
  name=$(basename "$program")
  cp "$program" "$folder/programs/$name"
  # A program is started through the loader of the bundle: the machine's C library may be older. exec
  # keeps the process, so that its parent may signal it.
  cat >"$folder/bin/$name" <<'WRAPPER'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")/..
exec "$here/lib/ld.so" --library-path "$here/lib" "$here/programs/$(basename "$0")" "$@"
WRAPPER
  chmod +x "$folder/bin/$name"
  libraries_of "$program" >>"$work/libraries"
  ldd "$program" | sed -nE 's/^\s*(\/[^ ]*ld-linux[^ ]*) .*/\1/p' >>"$work/loader"
done
# For a program with the machine's own C and C++ libraries (trace.py): all but these.
client=$(readlink -f "$build/client/libverbena.so")
[ -f "$client" ] || die "there is no $build/client/libverbena.so: build it first"
mkdir "$folder/client"
cp "$client" "$folder/client/libverbena.so"
strip --strip-debug "$folder/client/libverbena.so" 2>/dev/null || true
libraries_of "$client" >>"$work/libraries"
cp "$root/tests/gpu/trace.py" "$folder/"
# Loaded at run time, not linked. So are cuBLAS and NCCL, too large to carry along, and rdma-core,
# which these tests do not use.
fabric=$(ldconfig -p | sed -nE 's/.*=> (.*\/libfabric\.so\.1)$/\1/p' | head -n 1)
[ -n "$fabric" ] || die "there is no libfabric.so.1 here, which the tests of ofi need: install libfabric1"
{ echo "$fabric"; libraries_of "$fabric"; } >>"$work/libraries"
sort -u "$work/libraries" | xargs -r cp -Lt "$folder/lib"
for library in "$folder"/lib/*; do
  name=$(basename "$library")
  case "$name" in
    libc.so* | libm.so* | libdl.so* | librt.so* | libpthread.so* | libresolv.so* | libstdc++.so* | libgcc_s.so*) ;;
    *) ln -s "../lib/$name" "$folder/client/$name" ;;
  esac
done
cp -L "$(head -n 1 "$work/loader")" "$folder/lib/ld.so"
strip --strip-debug "$folder"/programs/* 2>/dev/null || true

cat >"$folder/run.sh" <<'RUN'
#!/usr/bin/env bash
# Runs the tests, then the benchmark, on this machine's GPU:
#     bash run.sh [tests|bench|sanitize|trace] [-- OPTIONS OF THE PROGRAM]
# "sanitize": the tests under compute-sanitizer's memcheck and racecheck, where it is installed.
# "trace": trace.py, where python3 has PyTorch; the trace goes to verbena-trace.json.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export VERBENA_VERBENAD=$here/bin/verbenad
# cuBLAS and NCCL are too large to carry along: this machine's, or none.
find_library() {  # PATTERN: the first that this machine has, be it in Python's packages
  {
    ldconfig -p 2>/dev/null | sed -nE "s/.*=> (.*$1)\$/\1/p"
    ls -r /usr/local/cuda/lib64/*.so.* 2>/dev/null
    packages=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null) &&
      find "$packages/nvidia" -name 'lib*.so.*' 2>/dev/null
  } | grep -E "/$1\$" | head -n 1
}
export VERBENA_CUBLAS=${VERBENA_CUBLAS:-$(find_library 'libcublas\.so\.1[23]')}
export VERBENA_NCCL=${VERBENA_NCCL:-$(find_library 'libnccl\.so\.2')}
tests='~[lost]'
if [ -z "$VERBENA_CUBLAS" ]; then
  echo "run.sh: no libcublas.so.13 or .12 here: tests of the text model are not run"
  tests+='~[cublas]'
elif [ -z "$VERBENA_NCCL" ]; then
  echo "run.sh: no libnccl.so.2 here: tests of several GPUs are not run"
  tests+='~[nccl]'
fi
run_tests() {
  "$here/bin/gpu_test" --use-colour no "$tests" "$@" || return
  # Loses its GPU: a process of its own. An imitation is not lost.
  [ -n "${VERBENA_CUDA_DRIVER:-}" ] || "$here/bin/gpu_test" --use-colour no '[lost]'
}
run_trace() {
  python3 -c 'import torch' 2>/dev/null || { echo "run.sh: python3 has no torch here" >&2; exit 1; }
  ready=$(mktemp -u)
  "$VERBENA_VERBENAD" --coordinator --shards 4 --listen 127.0.0.1:0 --ready-file "$ready" --log-level warn &
  daemon=$!
  for _ in $(seq 100); do [ -s "$ready" ] && break; sleep 0.1; done
  address=$(sed -nE 's/.*"address": *"([^"]+)".*/\1/p' "$ready")
  LD_LIBRARY_PATH=$here/client${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} python3 "$here/trace.py" \
    "$here/client/libverbena.so" "$address" verbena-trace.json
  status=$?
  kill "$daemon"
  wait "$daemon"
  rm -f "$ready"
  return "$status"
}
what=${1:-all}
[ "$#" -eq 0 ] || shift
[ "${1:-}" != -- ] || shift
case "$what" in
  all) run_tests && "$here/bin/gpu" --verbenad "$VERBENA_VERBENAD" ;;
  tests) run_tests "$@" ;;
  bench) "$here/bin/gpu" --verbenad "$VERBENA_VERBENAD" "$@" ;;
  sanitize)
    command -v compute-sanitizer >/dev/null || { echo "run.sh: there is no compute-sanitizer on the PATH" >&2; exit 1; }
    # Errors of the driver's calls are none of the kernels': the tests ask for too much memory, and the like.
    for tool in "memcheck --report-api-errors no" racecheck; do
      # shellcheck disable=SC2086  # a tool and its options
      compute-sanitizer --tool $tool --target-processes all --error-exitcode 9 \
        "$here/bin/gpu_test" --use-colour no "$tests~[held]" "$@" || exit 1
    done ;;
  trace) run_trace ;;
  *) echo "run.sh: unknown part '$what'; allowed: tests, bench, sanitize, trace" >&2; exit 2 ;;
esac
RUN
mkdir -p "$(dirname "$bundle")"
tar -C "$work" -czf "$bundle" verbena-gpu || die "cannot write $bundle"
printf 'bundle: %s (%s)\n' "$bundle" "$(du -h "$bundle" | cut -f 1)"

# ---- here, if there is a GPU ---------------------------------------------------------------------
# An imitated driver (VERBENA_CUDA_DRIVER) counts as one: the bundle is known to work by it.
if [ -z "${VERBENA_CUDA_DRIVER:-}" ] && ! nvidia-smi -L >/dev/null 2>&1; then
  cat <<'EOF'
no GPU here (nvidia-smi finds none): not run. On a machine with NVIDIA's driver:
    tar xf verbena-gpu.tar.gz && bash verbena-gpu/run.sh
EOF
  exit 77
fi
bash "$folder/run.sh" "$([ -z "${VERBENA_CUDA_DRIVER:-}" ] && echo all || echo tests)"
