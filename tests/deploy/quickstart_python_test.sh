#!/usr/bin/env bash
# quickstart.sh --python: a virtual environment with the package, and a model that it trains; wrong options
# are refused.
set -u
root=$1 build=$2
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
failed=0
fail() { echo "FAILED: $*"; failed=1; }

for module in pybind11 setuptools torch sklearn; do
  /usr/bin/python3 -c "import $module" 2>/dev/null || { echo "skipped: no $module"; exit 77; }
done
bash "$root/deploy/quickstart.sh" --python --bin-dir "$build" --venv "$here/venv" >"$here/out" 2>&1 ||
  { fail "quickstart.sh --python"; cat "$here/out"; }
accuracy=$(sed -nE 's/^accuracy ([0-9.]+) on .* 2 workers.*/\1/p' "$here/out")
awk -v accuracy="${accuracy:-0}" 'BEGIN { exit !(accuracy >= 0.96) }' ||
  { fail "the accuracy is '$accuracy'; wanted: 0.96"; cat "$here/out"; }
(cd / && "$here/venv/bin/python" -c 'import verbena.torch; verbena.table_options()') ||
  fail "the environment has no package verbena"
bash "$root/deploy/quickstart.sh" --python --workers none >"$here/out" 2>&1
status=$?
if [ "$status" != 2 ] || ! grep -qF "quickstart: --workers is 'none'; wanted: 1 to 999" "$here/out"; then
  fail "--workers none: status $status"
  cat "$here/out"
fi

[ "$failed" = 0 ] && echo "all is well"
exit "$failed"
