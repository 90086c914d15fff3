#!/usr/bin/env bash
# From a fresh Debian machine to a PyTorch model that is trained on a Verbena cluster: installs missing
# packages, builds, makes a virtual environment with the package verbena, trains. `--help` for options.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
  cat <<'EOF'
usage: bash deploy/quickstart.sh --python [OPTIONS]

Builds the Python package into a virtual environment, and trains a PyTorch classifier of handwritten
digits (worker/python/examples/digits.py) with a cluster on this machine.

  --workers N      processes that train (default 2)
  --venv DIR       folder of the virtual environment (default build/venv); an existing one is used again
  --bin-dir DIR    use the programs and the library that were built in DIR; install and build nothing else
  --help           this

The environment sees the system's packages (NumPy, PyTorch). Use it afterwards:
  . build/venv/bin/activate && python my_training.py
EOF
}
wrong() { printf 'quickstart: %s (see --python --help)\n' "$*" >&2; exit 2; }
die() { printf 'quickstart: %s\n' "$*" >&2; exit 1; }

workers=2 venv=$root/build/venv bin_dir=""
while [ "$#" -gt 0 ]; do
  option=$1
  case "$option" in
    --*=*) shift; set -- "${option%%=*}" "${option#*=}" "$@"; option=$1 ;;
  esac
  case "$option" in
    --help|-h) usage; exit 0 ;;
    --workers|--venv|--bin-dir) ;;
    *) wrong "unknown option '$option'" ;;
  esac
  [ "$#" -ge 2 ] || wrong "$option wants a value"
  case "$option" in
    --workers) workers=$2 ;;
    --venv) venv=$2 ;;
    --bin-dir) bin_dir=$2 ;;
  esac
  shift 2
done
[[ $workers =~ ^[1-9][0-9]{0,2}$ ]] || wrong "--workers is '$workers'; wanted: 1 to 999"
[ -n "$venv" ] || wrong "--venv is ''; wanted: a folder"

if [ -z "$bin_dir" ]; then
  # shellcheck source=deploy/packages.sh
  . "$root/deploy/packages.sh"
  ensure_packages build python || die "packages are missing (see above)"
  bin_dir=$root/build/release
  mkdir -p "$root/build"
  printf 'Building into build/release (the first time takes some minutes).\n'
  exec 9>"$root/build/.quickstart.lock"  # two quickstarts of one checkout take turns
  flock 9 || die "cannot lock $root/build"
  if [ ! -f "$bin_dir/build.ninja" ]; then
    cmake -S "$root" --preset release >"$root/build/release-configure.log" 2>&1 9>&- || {
      tail -n 30 "$root/build/release-configure.log" >&2
      die "cmake failed: the whole message is in build/release-configure.log"
    }
  fi
  ninja -C "$bin_dir" verbenad verbena_shared 9>&- || die "the build failed (see above)"
  exec 9>&-
fi
[ -x "$bin_dir/verbenad" ] || die "there is no $bin_dir/verbenad"
bin_dir=$(cd "$bin_dir" && pwd)

# The system's interpreter: Debian's packages are for no other.
python=/usr/bin/python3
if [ ! -x "$venv/bin/python" ]; then
  "$python" -m venv --system-site-packages --without-pip "$venv" || die "cannot make a virtual environment in $venv"
fi
printf 'Building the package verbena for %s, in %s.\n' "$("$venv/bin/python" --version)" "$venv"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
log=$(mktemp)
trap 'rm -f "$log"' EXIT
VERBENA_BUILD=$bin_dir "$venv/bin/python" -m pip install --quiet --no-build-isolation --no-deps --no-index \
  --disable-pip-version-check --upgrade --target "$site" "$root/worker/python" >"$log" 2>&1 || {
    cat "$log" >&2
    die "pip cannot build the package (see above)"
  }

printf 'Training digits with %s workers.\n' "$workers"
VERBENA_VERBENAD=$bin_dir/verbenad "$venv/bin/python" "$root/worker/python/examples/digits.py" --workers "$workers"
cat <<EOF

Where to go next:
  your own model     docs/pytorch.md; VERBENA_VERBENAD=$bin_dir/verbenad $venv/bin/python my_training.py
  tables by hand     docs/python.md
  a cluster          docs/getting-started.md
EOF
