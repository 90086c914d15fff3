#!/usr/bin/env bash
# Runs the commands of docs/getting-started.md as they stand there, from section 2 on (quickstart_test.sh
# has the first), in a network namespace of its own, where both machines are this one.
set -euo pipefail
source_dir=$1 build_dir=$2
if [ -z "${GETTING_STARTED:-}" ]; then
  if ! unshare --net true 2>/dev/null; then
    echo "skipped: no network namespace for this user"
    exit 77
  fi
  GETTING_STARTED=1 exec unshare --net --pid --fork --kill-child bash "$0" "$@"
fi
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
ip link set lo up
ip addr add 10.0.0.1/32 dev lo
ip addr add 10.0.0.2/32 dev lo
# The page's build/release is replaced by the folder that was built.
awk '/^## 2\. /{on = 1} /^```$/{sh = 0} on && sh; /^```sh$/{sh = 1}' "$source_dir/docs/getting-started.md" |
  sed "s|build/release|$build_dir|" >"$here/commands"
[ "$(wc -l <"$here/commands")" -ge 30 ] || { echo "the page has too few commands"; exit 1; }
cd "$source_dir"
status=0
HOME=$here timeout 280 bash -eu "$here/commands" >"$here/log" 2>&1 || status=$?
wanted=("weights[0] = 0.6513 after 10 steps" "trained 50 steps" "node-2" "licences/" "LANES")
for text in "${wanted[@]}"; do
  grep -qF -- "$text" "$here/log" || { echo "no '$text' in the output"; status=1; }
done
[ "$status" -eq 0 ] || { cat "$here/log" "$here"/verbena-demo/*.log; exit 1; }
