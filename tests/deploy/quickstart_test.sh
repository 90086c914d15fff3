#!/usr/bin/env bash
# Two quickstarts at once: each trains the real text, beats the count model of order 1, accounts for
# its traffic, and leaves nothing behind. Then one that is interrupted, and some that are refused.
set -u
root=$1 build=$2
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
export TMPDIR=$here/tmp
mkdir "$TMPDIR"
quickstart=(bash "$root/deploy/quickstart.sh" --bin-dir "$build")
failed=0
fail() { echo "FAILED: $*"; failed=1; }

# Processes of this test: those whose environment has this TMPDIR.
ours() {
  local environment pid
  for environment in /proc/[0-9]*/environ; do
    pid=${environment#/proc/}
    pid=${pid%/environ}
    case "$(readlink "/proc/$pid/exe" 2>/dev/null)" in */verbenad|*/verbena-train) ;; *) continue ;; esac
    tr '\0' '\n' <"$environment" 2>/dev/null | grep -qx "TMPDIR=$TMPDIR" && echo "$pid"
  done
}
check_clean() {
  [ -z "$(ours)" ] || fail "$1: left running: $(ours | paste -sd ' ')"
  [ -z "$(ls -A "$TMPDIR")" ] || fail "$1: left in the temporary folder: $(ls -A "$TMPDIR")"
}

"${quickstart[@]}" --json >"$here/one.json" 2>"$here/one.log" &
one=$!
"${quickstart[@]}" --json --consistency async >"$here/two.json" 2>"$here/two.log" &
two=$!
wait "$one" || { fail "the first quickstart"; cat "$here/one.log"; }
wait "$two" || { fail "the second quickstart"; cat "$here/two.log"; }
check_clean "two at once"
for run in one two; do
  python3 - "$here/$run.json" <<'EOF' || { fail "the JSON of run $run"; cat "$here/$run.json"; }
import json
import sys

run = json.loads(open(sys.argv[1]).read())  # exactly one object, or this throws
for key in ("samples_per_s", "loss", "bytes_pushed", "bytes_pulled", "bits_per_byte"):
    assert run[key] > 0, key
counts = run["count_models"]
assert counts["order_0"] > counts["order_1"] > counts["order_2"] > 0, counts
assert run["bits_per_byte"] < counts["order_1"], (run["bits_per_byte"], counts)
shards = run["shards"]
assert len(shards) == 4, shards
# The workers' bytes sent are those that the servers counted.
assert sum(s["push_bytes"] for s in shards) == run["bytes_pushed"], (shards, run["bytes_pushed"])
assert all(s["pushes"] > 0 and s["pulls"] > 0 for s in shards), shards
EOF
done

# For people: quality on a test file of one's own, and a row of load for each shard.
for ((i = 0; i < 400; i++)); do printf '%d %d:1 4:0.5\n' $((i % 2)) $((i % 2 + 1)); done >"$here/toy"
"${quickstart[@]}" --servers 1 --shards 3 --workers 1 --consistency ssp:3 --format libsvm \
  --data "$here/toy" --test "$here/toy" >"$here/plain.log" 2>&1 || { fail "plain"; cat "$here/plain.log"; }
[ "$(grep -cE '^ +server-0 +[0-2] +[0-9]+ ' "$here/plain.log")" -eq 3 ] ||
  { fail "no table of three shards"; cat "$here/plain.log"; }
grep -q 'accuracy 1\.0' "$here/plain.log" || { fail "no accuracy"; cat "$here/plain.log"; }
grep -q "look after one  *$build/verbena --help" "$here/plain.log" ||
  { fail "the verbena command is not named"; cat "$here/plain.log"; }
check_clean "plain"

# Interrupted in the middle of training: status 130, nothing left.
"${quickstart[@]}" --train-option=--epochs=1000 >"$here/three.log" 2>&1 &
three=$!
for ((i = 0; i < 600; i++)); do
  grep -qs '^Training' "$here/three.log" && break
  kill -0 "$three" 2>/dev/null || break
  sleep 0.1
done
# A background process of a script ignores SIGINT; SIGTERM takes the same way out.
kill -TERM "$three"
wait "$three"
status=$?
[ "$status" -eq 143 ] || { fail "interrupted: status $status"; cat "$here/three.log"; }
check_clean "interrupted"

# Refused, with the reason in the last line.
refused() {  # PATTERN ARGUMENTS...
  local pattern=$1 said
  shift
  said=$("${quickstart[@]}" "$@" 2>&1) && fail "accepted: $*"
  tail -n 1 <<<"$said" | grep -q -- "$pattern" || fail "$*: the last line is '$(tail -n 1 <<<"$said")'"
}
refused "unknown option '--frobnicate'" --frobnicate
refused "consistency is 'eventual'" --consistency eventual
for staleness in ssp: ssp:-1 ssp:x ssp:1000001 ssp:03 sync:2; do
  refused "consistency is '$staleness'" --consistency "$staleness"
done
refused "transport is 'tcp'; allowed: auto" --transport tcp
refused "consistency wants a value" --consistency
refused "servers is '0'" --servers 0
refused "cannot read '/nonexistent'" --data /nonexistent
refused "wants --data" --format libsvm
printf 'not libsvm\n' >"$here/bad.txt"
refused "training failed" --format libsvm --data "$here/bad.txt"
check_clean "refused"
exit "$failed"
