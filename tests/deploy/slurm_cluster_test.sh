#!/usr/bin/env bash
# The batch script under a real Slurm with two nodes on this machine: it trains, is requeued, resumes from its newest
# checkpoint, and drains at SIGTERM.
#
#     slurm_cluster_test.sh ROOT BUILD
set -eu
root=$1 build=$2
for program in slurmctld slurmd sbatch munged; do
  command -v "$program" >/dev/null && continue
  echo "skipped: $program is missing; apt-get install --no-install-recommends slurmctld slurmd slurm-client munge"
  exit 77
done

# Short: the path of munge's socket has a limit. Slurm's and munge's own directories stay untouched.
here=$(mktemp -d /tmp/verbena-slurm-XXXXXX)
pids=()
finish() {
  status=$?
  trap - EXIT
  scancel --me >/dev/null 2>&1 || true
  wait_for 30 no_jobs || true
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait || true
  if [ "$status" -ne 0 ]; then tail -n 40 "$here"/log/* "$here"/*.out "$here"/job/attempt-*/*.log 2>/dev/null || true; fi
  rm -rf "$here"
  exit "$status"
}
# wait_for SECONDS CONDITION...
wait_for() {
  local left=$(($1 * 5))
  shift
  until "$@"; do
    left=$((left - 1))
    [ "$left" -gt 0 ] || { echo "not in time: $*"; return 1; }
    sleep 0.2
  done
}
no_jobs() { [ -z "$(squeue --noheader --me 2>/dev/null)" ]; }
trap finish EXIT

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
mkdir -p "$here"/{ctl,spool-node0,spool-node1,log,data}
head -c 64 /dev/urandom >"$here/munge.key"
chmod 400 "$here/munge.key"
chmod 711 "$here"
host=$(hostname -s) user=$(id -un)
cat >"$here/slurm.conf" <<CONF
ClusterName=verbena-test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$here/munge.socket
SlurmctldPort=$(free_port)
StateSaveLocation=$here/ctl
SlurmdSpoolDir=$here/spool-%n
SlurmctldPidFile=$here/slurmctld.pid
SlurmdPidFile=$here/slurmd-%n.pid
SlurmctldLogFile=$here/log/slurmctld.log
SlurmdLogFile=$here/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1
KillWait=10
ReturnToService=2
NodeName=node0 NodeHostname=$host NodeAddr=127.0.0.1 Port=$(free_port) CPUs=4 State=UNKNOWN
NodeName=node1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$(free_port) CPUs=4 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$here/slurm.conf
munged --foreground --force --socket="$here/munge.socket" --key-file="$here/munge.key" --pid-file="$here/munged.pid" \
  --log-file="$here/log/munged.log" --seed-file="$here/munge.seed" >"$here/log/munged.out" 2>&1 &
pids+=("$!")
wait_for 30 test -S "$here/munge.socket"
slurmctld -D -c >"$here/log/slurmctld.out" 2>&1 &
pids+=("$!")
for node in node0 node1; do
  slurmd -D -c -N "$node" >"$here/log/$node.out" 2>&1 &
  pids+=("$!")
done
nodes_idle() { [ "$(sinfo --noheader --Node --states=idle --format=%N 2>/dev/null | wc -l)" -eq 2 ]; }
wait_for 60 nodes_idle

# Enough steps that only SIGTERM ends the run.
awk 'BEGIN { srand(1); for (i = 0; i < 2000; ++i) { x = rand() < 0.5; print x ? "+1" : "-1", (x ? 1 : 2) ":1", 3 + int(20 * rand()) ":1" } }' \
  >"$here/data/train.libsvm"
cd "$here"
export VERBENA_BIN=$build VERBENA_DIR=$here/job VERBENA_INTERFACE=lo VERBENA_CHECKPOINT_EVERY=1 VERBENA_SHARDS=1
id=$(sbatch --parsable --output="$here/job.out" --ntasks=2 : --ntasks=2 "$root/deploy/verbena.sbatch" \
  --format libsvm --data "$here/data/train.libsvm" --steps 100000000 --batch 64 --timeout 60)
id=${id%%[;+]*}
checkpoints=$here/job/checkpoints/slurm-$id

newest_step() {
  "$build/verbena" checkpoint list "$checkpoints" --json 2>/dev/null |
    python3 -c 'import json, sys; print(max((c["step"] for c in json.load(sys.stdin)["checkpoints"]), default=0))' 2>/dev/null || echo 0
}
beyond() { [ "$(newest_step)" -gt "$1" ]; }
wait_for 120 beyond 0
grep -q '2 servers, 2 workers' job.out
[ "$(find "$here/job/attempt-0" -name 'worker-*.log' | wc -l)" -eq 2 ]

# A requeued job waits for two minutes, unless it gets another start time.
scontrol requeue "$id"
pending() {
  [ "$(squeue --noheader --me --states=PENDING --format=%T | wc -l)" -eq 2 ] &&
    [ "$(scontrol show job "$id" | grep -c 'Restarts=1')" -eq 2 ]
}
wait_for 60 pending
before=$(newest_step)
for component in 0 1; do scontrol update jobid="$id+$component" StartTime=now; done
wait_for 120 grep -q "attempt 1 resumes job slurm-$id" job.out
grep -q "restored .*: step $before," job.out || { echo "not the newest checkpoint, of step $before"; cat job.out; exit 1; }
wait_for 120 beyond "$before"
# Both attempts wrote to their own logs, and the second one's workers began after the restored step.
[ -s "$here/job/attempt-1/coordinator.log" ]

# A limit of two minutes is so near that Slurm sends the script its SIGTERM at the next check.
running=$(newest_step)
for component in 0 1; do scontrol update jobid="$id+$component" TimeLimit=2; done
wait_for 120 no_jobs
grep -q 'SIGTERM: the last checkpoint' job.out
sed -n '/checkpoints: the last ones/,$p' "$here/job/attempt-1/coordinator.log" | grep -q 'checkpoints: saved'
beyond "$running" || { echo "no checkpoint after SIGTERM, only that of step $running"; exit 1; }
for daemon in coordinator server-0 server-1; do
  [ ! -e "$here/job/attempt-1/$daemon.ready" ] || { echo "$daemon did not end by itself"; exit 1; }
done
