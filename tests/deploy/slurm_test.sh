#!/usr/bin/env bash
# The batch script without Slurm: its errors, before anything is started. slurm_cluster_test.sh runs it under Slurm.
set -eu
root=$1
bash -n "$root/deploy/verbena.sbatch"

here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
mkdir -p "$here/bin" "$here/build/release"
# scontrol show hostnames LIST: one a line. srun: nothing may be started.
cat >"$here/bin/scontrol" <<'EOF'
#!/usr/bin/env bash
tr , '\n' <<<"$3"
EOF
printf '#!/bin/sh\necho started >>"%s/started"\nexit 1\n' "$here" >"$here/bin/srun"
for program in verbenad verbena verbena-train; do printf '#!/bin/sh\n' >"$here/build/release/$program"; done
chmod +x "$here/bin/"* "$here/build/release/"*

# refuses MESSAGE VARIABLE=VALUE... -- ARGUMENTS...: exit status 2, a message, and nothing was started.
refuses() {
  local message=$1 status=0 variables=()
  shift
  while [ "$1" != -- ]; do variables+=("$1"); shift; done
  shift
  env PATH="$here/bin:$PATH" SLURM_SUBMIT_DIR="$here" "${variables[@]}" bash "$root/deploy/verbena.sbatch" "$@" \
    >"$here/out" 2>&1 || status=$?
  if [ "$status" -ne 2 ] || ! grep -q -e "$message" "$here/out" || [ -e "$here/started" ]; then
    echo "expected exit status 2 and '$message', got $status:"
    cat "$here/out"
    exit 1
  fi
}
het=(SLURM_JOB_ID=7 SLURM_HET_SIZE=2 SLURM_NTASKS_HET_GROUP_0=2 SLURM_NTASKS_HET_GROUP_1=2
  SLURM_JOB_NODELIST_HET_GROUP_0=a SLURM_JOB_NODELIST_HET_GROUP_1=b)
refuses 'not in a Slurm job' A=b -- --data x
refuses 'has 1 components' SLURM_JOB_ID=7 -- --data x
refuses 'no arguments for verbena-train' "${het[@]}" --
refuses 'set VERBENA_BIN' "${het[@]}" VERBENA_BIN=/nowhere -- --data x
refuses 'set VERBENA_DIR' "${het[@]}" VERBENA_DIR=/dev/null/here -- --data x
refuses '2 nodes communicate over the network' "${het[@]}" -- --data x
