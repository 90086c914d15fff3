#!/usr/bin/env bash
# Every shell script parses, and shellcheck finds nothing.
set -u
cd "$1" || exit 1
mapfile -t scripts < <(
  find deploy docs tests bench \( -name '*.sh' -o -name '*.sbatch' \) | sort
  echo .ci/run
)
failed=0
for script in "${scripts[@]}"; do
  bash -n "$script" || failed=1
done
if ! command -v shellcheck >/dev/null; then
  [ "$failed" -eq 0 ] || exit 1
  echo "skipped: no shellcheck"
  exit 77
fi
shellcheck -x --source-path="$1" "${scripts[@]}" || failed=1
exit "$failed"
