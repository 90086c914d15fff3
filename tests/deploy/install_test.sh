#!/usr/bin/env bash
# The files of `cmake --install` work without the tree it was built from: a project outside
# finds the package, builds the examples in C++ and C against the shared library and the archive,
# and they train against a cluster of the installed daemon.
set -euo pipefail
source_dir=$1 build_dir=$2 version=$3
here=$(mktemp -d)
daemon="" address=""
finish() {
  if [ -n "$daemon" ]; then kill "$daemon" 2>/dev/null || true; wait "$daemon" || true; fi
  rm -rf "$here"
}
trap finish EXIT
fail() {
  printf '%s\n' "$*"
  exit 1
}
# run LOG COMMAND... : shows the log only when it fails.
run() {
  local log=$here/$1.log
  shift
  "$@" >"$log" 2>&1 || { cat "$log"; fail "failed: $*"; }
}

run install cmake --install "$build_dir" --prefix "$here/prefix"
prefix=$here/moved
mv "$here/prefix" "$prefix"  # nothing in it may depend on where it was first
for file in bin/verbenad bin/verbena-train include/verbena/client.h include/verbena/verbena.h; do
  [ -e "$prefix/$file" ] || fail "not installed: $file"
done
grep -qx "License: Apache-2.0" "$prefix/share/doc/verbena/copyright" || fail "the licence is not installed"
[ "$("$prefix/bin/verbenad" --version)" = "verbenad $version" ] || fail "verbenad is not $version"
[ "$("$prefix/bin/verbena-train" --version)" = "verbena-train $version" ] ||
  fail "verbena-train is not $version"
library=$(find "$prefix" -name "libverbena.so.$version")
[ -n "$library" ] || fail "not installed: libverbena.so.$version"
readelf -d "$library" | grep -q "SONAME.*\[libverbena.so.${version%%.*}\]" || fail "no SONAME"
# Only files that users need, without the path of the build.
if grep -rlE "$source_dir|$build_dir|$here/prefix" "$prefix/include" "$prefix"/lib*/cmake \
  "$prefix"/lib*/*/cmake 2>/dev/null; then
  fail "these name the tree they were built in"
fi

common=(-G Ninja -DCMAKE_BUILD_TYPE=Release "-DCMAKE_PREFIX_PATH=$prefix" "-DINSTALLED=$prefix"
  "-DEXAMPLES=$source_dir/client/example")
outside=$source_dir/tests/deploy/outside
run configure cmake -S "$outside" -B "$here/outside" "${common[@]}"
run build cmake --build "$here/outside"
run configure_c cmake -S "$outside/c_only" -B "$here/c_only" "${common[@]}"
run build_c cmake --build "$here/c_only"

# Missing components are reported, not found.
refused() {  # TEXT OPTION...
  local text=$1
  shift
  if cmake -S "$outside/c_only" -B "$here/refused" "${common[@]}" "$@" >"$here/refused.log" 2>&1; then
    fail "find_package succeeds with $*"
  fi
  grep -q "$text" "$here/refused.log" || { cat "$here/refused.log"; fail "no '$text'"; }
  rm -rf "$here/refused"
}
refused "version: $version" -DWANTED_VERSION=0.2
refused "version: $version" -DWANTED_VERSION=1.0
refused "no component 'python'" -DWANTED_COMPONENT=python

# pkg-config, for C.
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name verbena.pc)")
export PKG_CONFIG_PATH
[ "$(pkg-config --modversion verbena)" = "$version" ] || fail "pkg-config: $(pkg-config --modversion verbena 2>&1)"
read -ra flags <<<"$(pkg-config --cflags --libs verbena)"
mkdir "$here/pkg_config"
run pkg_config cc -std=c99 -o "$here/pkg_config/c_shared" "$source_dir/client/example/quick_example.c" "${flags[@]}" \
  -Wl,-rpath,"$(dirname "$library")"

# The Python package beside the library, and one that pip builds against it.
if [ -e "$build_dir/python/interpreter" ]; then
  python=$(cat "$build_dir/python/interpreter")
  installed=$(find "$prefix/lib" -type d -path '*python3*/verbena' -prune)
  [ -n "$installed" ] || fail "the Python package is not installed"
  cp -r "$source_dir/worker/python" "$here/python"
  VERBENA_PREFIX=$prefix run pip "$python" -m pip install -q --no-build-isolation --no-deps --no-index \
    --target "$here/pip" "$here/python"
  # The other ways to name the library, and the errors where there is none.
  found() { (cd "$here/python" && env -u PKG_CONFIG_PATH -u VERBENA_PREFIX "$@" "$python" -W ignore setup.py --version 2>&1 | tail -n 1); }
  for place in PKG_CONFIG_PATH="$PKG_CONFIG_PATH" CMAKE_PREFIX_PATH="/nowhere:$prefix" VERBENA_PREFIX="$prefix"; do
    [ "$(found "$place")" = "$version" ] || fail "with $place: $(found "$place")"
  done
  grep -q "libverbena was not found .*cmake --install .*VERBENA_PREFIX" <<<"$(found)" || fail "without libverbena: $(found)"
  grep -q "VERBENA_PREFIX is /nowhere, which has no libverbena" <<<"$(found VERBENA_PREFIX=/nowhere)" ||
    fail "VERBENA_PREFIX=/nowhere: $(found VERBENA_PREFIX=/nowhere)"
  for package in "$installed" "$here/pip/verbena"; do
    run python env -u VERBENA_VERBENAD PATH=/usr/bin:/bin PYTHONPATH="${package%/verbena}" "$python" -c "
import verbena
assert verbena.__file__.startswith('$package'), verbena.__file__
assert verbena.find_verbenad() == '$prefix/bin/verbenad', verbena.find_verbenad()
exec(open('$source_dir/worker/python/examples/ten_lines.py').read())"
  done
fi

start_cluster() {
  rm -f "$here/ready"
  "$prefix/bin/verbenad" --coordinator --listen 127.0.0.1:0 --ready-file "$here/ready" \
    >"$here/daemon.log" 2>&1 &
  daemon=$!
  for ((i = 0; i < 300; i++)); do
    [ -s "$here/ready" ] && break
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.1
  done
  [ -s "$here/ready" ] || { cat "$here/daemon.log"; fail "verbenad did not start"; }
  address=$(sed -nE 's/.*"address" *: *"([^"]+)".*/\1/p' "$here/ready")
}
stop_cluster() {
  kill "$daemon"
  wait "$daemon" || fail "verbenad ended with $?"
  daemon=""
}

# Each trains a table from its first step, so each has a cluster of its own.
for program in outside/cpp_shared outside/cpp_static outside/c_shared outside/c_static \
  c_only/c_only pkg_config/c_shared; do
  start_cluster
  said=$(timeout 60 "$here/$program" "$address" 2>&1) || fail "$program: status $?: $said"
  [ "$said" = "weights[0] = 0.6513 after 10 steps" ] || fail "$program: $said"
  stop_cluster
  linked=$(ldd "$here/$program")
  # Found at run time, when they are used.
  case "$linked" in *libfabric* | *libibverbs*) fail "$program starts with libfabric or rdma-core: $linked" ;; esac
  case "$program" in
    *_static) case "$linked" in *libverbena*) fail "$program needs the shared library" ;; esac ;;
    *) case "$linked" in *"$prefix"/*libverbena.so.*) ;; *) fail "$program: $linked" ;; esac ;;
  esac
  printf '%s: %s\n' "$program" "$said"
done
