#!/usr/bin/env bash
# Makes a wheel of the Python package that needs nothing else on the machine where it is installed: with
# libverbena, verbenad, verbena and their libraries. `--help` for options.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
  cat <<'USAGE'
usage: bash deploy/wheel.sh [OPTIONS] [OUTDIR]

Builds Verbena and writes verbena-VERSION-...whl into OUTDIR (default build/wheel). It contains the
Python package, libverbena, the programs verbenad and verbena, and all their libraries except those of
the C and C++ compiler (glibc, libstdc++, libgcc). rdma-core, libfabric and the GPU's driver are the
machine's own, where it has them. Install it with: pip install OUTDIR/verbena-VERSION-...whl

  --python PROGRAM  the Python that the wheel is for (default /usr/bin/python3); 3.9 or later, with its
                    headers, setuptools, wheel, pip and pybind11
  --bin-dir DIR     use the programs and the library that were built in DIR; install and build nothing else
  --help            this
USAGE
}
wrong() { printf 'wheel.sh: %s (see --help)\n' "$*" >&2; exit 2; }
die() { printf 'wheel.sh: %s\n' "$*" >&2; exit 1; }
say() { printf '== %s\n' "$*"; }

python=/usr/bin/python3 bin_dir="" out=""
while [ "$#" -gt 0 ]; do
  option=$1
  case "$option" in
    --*=*) shift; set -- "${option%%=*}" "${option#*=}" "$@"; option=$1 ;;
  esac
  case "$option" in
    --help|-h) usage; exit 0 ;;
    --python|--bin-dir)
      [ "$#" -ge 2 ] || wrong "$option wants a value"
      [ -n "$2" ] || wrong "$option is ''; wanted: a path"
      ;;
    -*) wrong "unknown option '$option'" ;;
    *)
      [ -z "$out" ] || wrong "OUTDIR is '$out' and '$option'; wanted: one folder"
      [ -n "$option" ] || wrong "OUTDIR is ''; wanted: a folder"
      out=$option
      shift
      continue
      ;;
  esac
  case "$option" in
    --python) python=$2 ;;
    --bin-dir) bin_dir=$2 ;;
  esac
  shift 2
done

# Before minutes of building: the errors that can be known now.
out=${out:-$root/build/wheel}
mkdir -p "$out" || die "cannot make the folder $out; give another OUTDIR"
[ -w "$out" ] || die "cannot write into $out; give another OUTDIR"
out=$(cd "$out" && pwd)
if [ -z "$bin_dir" ]; then
  # shellcheck source=deploy/packages.sh
  . "$root/deploy/packages.sh"
  ensure_packages build wheel || die "packages are missing (see above)"
fi
for program in patchelf strip readelf ldd; do
  command -v "$program" >/dev/null ||
    die "there is no $program; install it: sudo apt-get install --no-install-recommends patchelf binutils libc-bin"
done
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null ||
  die "--python is '$python'; wanted: a Python 3.9 or later"
for module in setuptools wheel pip pybind11; do
  "$python" -c "import $module" 2>/dev/null ||
    die "$python has no module $module; install it (Debian's Python: sudo apt-get install --no-install-recommends python3-$module; another: $python -m pip install $module)"
done

if [ -z "$bin_dir" ]; then
  bin_dir=$root/build/release
  mkdir -p "$root/build"
  say "building into build/release (the first time takes some minutes)"
  exec 9>"$root/build/.quickstart.lock"  # two builds of one checkout take turns
  flock 9 || die "cannot lock $root/build"
  if [ ! -f "$bin_dir/build.ninja" ]; then
    cmake -S "$root" --preset release >"$root/build/release-configure.log" 2>&1 9>&- || {
      tail -n 30 "$root/build/release-configure.log" >&2
      die "cmake failed: the whole message is in build/release-configure.log"
    }
  fi
  ninja -C "$bin_dir" verbenad verbena verbena_shared 9>&- || die "the build failed (see above)"
  exec 9>&-
fi
for file in verbenad verbena client/libverbena.so; do
  [ -e "$bin_dir/$file" ] || die "there is no $bin_dir/$file; build it: ninja -C $bin_dir verbenad verbena verbena_shared"
done
bin_dir=$(cd "$bin_dir" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Equal sources give an equal file.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
say "compiling the extension for $("$python" --version)"
VERBENA_PREFIX="" VERBENA_BUILD=$bin_dir "$python" -m pip wheel --quiet --no-build-isolation --no-deps --no-index \
  --disable-pip-version-check --wheel-dir "$work/plain" "$root/worker/python" >"$work/pip.log" 2>&1 || {
    cat "$work/pip.log" >&2
    die "pip cannot build the package (see above)"
  }
say "adding libverbena, the programs and their libraries"
"$python" "$root/deploy/bundle_wheel.py" "$work"/plain/*.whl "$bin_dir" "$work" "$out"
