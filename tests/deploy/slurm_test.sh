#!/usr/bin/env bash
# The batch script, run with a stand-in for srun where there is no Slurm: the steps it starts, their
# arguments and environment, and that all are stopped at the end.
set -eu
root=$1
bash -n "$root/deploy/verbena.sbatch"
if command -v sbatch >/dev/null && sinfo >/dev/null 2>&1; then
  sbatch --test-only "$root/deploy/verbena.sbatch"
fi

here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
mkdir -p "$here/bin" "$here/build/release"
# srun OPTIONS PROGRAM...: runs PROGRAM here.
cat >"$here/bin/srun" <<'EOF'
#!/usr/bin/env bash
output=/dev/stdout
while [[ $1 == --* ]]; do case "$1" in --output=*) output=${1#--output=} ;; esac; shift; done
exec "$@" >>"$output" 2>&1
EOF
# verbenad: writes its ready file, logs its arguments, and waits for SIGTERM.
cat >"$here/build/release/verbenad" <<'EOF'
#!/usr/bin/env bash
printf '%s\n' "$*" >>"$SLURM_SUBMIT_DIR/daemons"
while [ "$#" -gt 0 ]; do case "$1" in --ready-file) ready=$2 ;; esac; shift; done
printf '{"address": "node:%s", "pid": %s}\n' "$$" "$$" >"$ready"
trap 'echo stopped >>"$SLURM_SUBMIT_DIR/stopped"; kill "$!"; exit 0' TERM
sleep 300 &
wait
EOF
cat >"$here/build/release/verbena-train" <<'EOF'
#!/usr/bin/env bash
printf '%s\n' "$*" >"$SLURM_SUBMIT_DIR/train"
EOF
chmod +x "$here/bin/srun" "$here/build/release/"*

SLURM_SUBMIT_DIR=$here SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 PATH=$here/bin:$PATH \
  bash "$root/deploy/verbena.sbatch" --data some.txt >"$here/out" 2>&1 || { cat "$here/out"; exit 1; }

if SLURM_JOB_NUM_NODES=2 SLURM_SUBMIT_DIR=$here bash "$root/deploy/verbena.sbatch" 2>/dev/null; then
  echo "two nodes were accepted, though there is no transport between machines"
  exit 1
fi

fail() { echo "$*"; cat "$here/daemons" "$here/train" "$here/out" || true; exit 1; }
[ "$(wc -l <"$here/daemons")" -eq 3 ] || fail "expected three daemons"
grep -q -- '--coordinator --shards 0 --expected-servers 2' "$here/daemons" || fail "no coordinator"
coordinator=$(sed -nE 's/.*"address": "([^"]+)".*/\1/p' "$here/verbena-7/coordinator.ready")
[ "$(grep -c -- "--join $coordinator --shards 2" "$here/daemons")" -eq 2 ] || fail "no two servers"
grep -q -- "--cluster $coordinator --workers 2 --data some.txt" "$here/train" || fail "training"
[ "$(wc -l <"$here/stopped")" -eq 3 ] || fail "not all daemons were stopped"
