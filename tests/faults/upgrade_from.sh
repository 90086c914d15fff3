#!/usr/bin/env bash
# Upgrades a cluster from a real build of an older revision, under load.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)

usage() {
  cat <<'USAGE'
usage: bash tests/faults/upgrade_from.sh [--revision REV] [--build DIR] [--work DIR] [--jobs N] [--find]

Builds verbenad, verbena and a test of its own clients from an older revision of this repository, and runs
  rolling_upgrade_test             from its verbenad to that of DIR (default build/release)
  client_faults_test               of the older revision (its own clients), against the verbenad of DIR
REV is by default the newest release (tag v*), else the last revision before the protocol version of this tree.
The older tree is checked out and built in a folder below DIR, or in --work, which stays.
--find prints REV alone. Exit status 77: there is no such revision, as in a tree without history.
USAGE
}
wrong() { printf 'upgrade_from.sh: %s (see --help)\n' "$*" >&2; exit 2; }

revision="" build=$root/build/release work="" jobs=$(nproc) find=0
while [ "$#" -gt 0 ]; do
  case "$1" in
    --revision|--build|--work|--jobs) [ "$#" -ge 2 ] || wrong "$1 wants a value" ;;&
    --revision) revision=$2; shift ;;
    --build) build=$(realpath "$2"); shift ;;
    --work) work=$(realpath -m "$2"); shift ;;
    --jobs) jobs=$2; shift ;;
    --find) find=1 ;;
    --help|-h) usage; exit 0 ;;
    *) wrong "unknown argument '$1'" ;;
  esac
  shift
done

skip() { printf 'skipped: %s\n' "$*"; exit 77; }
history() { git -C "$root" "$@" 2>/dev/null; }
# A tree inside another repository has no history of its own.
[ "$(history rev-parse --show-toplevel)" = "$root" ] || skip "$root has no history (git)"
if [ -z "$revision" ]; then
  revision=$(history describe --tags --abbrev=0 --match 'v*' HEAD^) || revision=""
fi
if [ -z "$revision" ]; then
  version=$(sed -nE 's/^inline constexpr uint32_t kProtocolVersion = ([0-9]+);/\1/p' "$root/proto/protocol_version.h")
  made=$(history log --format=%H -S"kProtocolVersion = $version;" -- proto/protocol_version.h | tail -n 1)
  [ -z "$made" ] || revision=$made^
fi
revision=$(history rev-parse --verify --quiet "${revision:-none}^{commit}") ||
  skip "the history has neither a release nor the protocol version before"
if [ "$find" -eq 1 ]; then
  echo "$revision"
  exit 0
fi

older=${work:-$build/upgrade-from}
remove() {
  [ -n "$work" ] || git -C "$root" worktree remove --force "$older" >/dev/null 2>&1 || true
}
remove
trap remove EXIT
[ -e "$older/.git" ] || git -C "$root" worktree add --force --detach "$older" "$revision" >/dev/null
printf 'building %s\n' "$(git -C "$older" log -1 --format='%h %s')"
(cd "$older" && mkdir -p build && cmake --preset release -D VERBENA_TIER=change >build/configure.log 2>&1) ||
  { tail -n 40 "$older/build/configure.log"; exit 1; }
cmake --build "$older/build/release" -j "$jobs" --target verbenad verbena_program client_faults_test |
  tail -n 1

failed=0
check() {  # WHAT COMMAND...
  printf -- '-- %s\n' "$1"
  shift
  "$@" || failed=1
}
old=$older/build/release
export VERBENA_VERBENAD=$build/verbenad
check "servers of the older revision are upgraded" \
  env VERBENA_CLI="$build/verbena" VERBENA_PREVIOUS="$old/verbenad" \
  "$build/tests/faults/rolling_upgrade_test" --use-colour no -d yes
check "clients of the older revision use servers of this one" \
  env VERBENA_CLI="$old/verbena" "$old/tests/faults/client_faults_test" --use-colour no -d yes
exit "$failed"
