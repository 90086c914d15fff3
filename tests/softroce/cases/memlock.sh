#!/usr/bin/env bash
# guests: 1
# limit: 600
# when: nightly
# needs: verbenad verbena-train
# A memlock limit too small for a whole worker, and for a whole server: calls end with an error that
# names the limit in force and the fix, under auto shared memory carries the data, and the
# same servers work once the limit is raised.
# shellcheck source=tests/softroce/lib.sh
. "$SOFTROCE/lib.sh"
# shellcheck source=tests/softroce/training.sh
. "$SOFTROCE/training.sh"

# RLIMIT_MEMLOCK applies only to processes without the capability to exceed it.
limited=(prlimit --memlock=1048576:1048576 setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock)
in_force="RLIMIT_MEMLOCK in force: 1048576 bytes"
advice="raise the limit (ulimit -l unlimited; systemd: LimitMEMLOCK=infinity"

train_over() {  # TRANSPORT FILE
  train "$coordinator" "$1" "$2"
  parameters+=("$(result "$2" parameters_xxh64)")
}
parameters=()

train_batch=32
note "too little for a worker"
start_cluster auto 127.0.0.1
coordinator=$(field coordinator address)
under=("${limited[@]}") train_timeout=10
train_start "$coordinator" verbs worker.json
train_fails
assert_says train.log "of memory with RDMA device $DEVICE: "
assert_says train.log "$in_force"
assert_says train.log "$advice"
train_over auto worker-auto.json
assert_equal "transport" "$(result worker-auto.json transport)" shm
under=() train_timeout=120
train_over verbs worker-unlimited.json
assert_equal "transport" "$(result worker-unlimited.json transport)" verbs
stop_cluster

note "too little for a server"
under=("${limited[@]}")
start_cluster auto 127.0.0.1
coordinator=$(field coordinator address)
under=() train_timeout=10
train_start "$coordinator" verbs server.json
train_fails
# A rejected connection carries 148 bytes: the server's log has the rest.
assert_says train.log "of memory with RDMA device $DEVICE: "
for server in server-0 server-1; do
  assert_says "$server.log" "not opened: verbena-ring ("
  assert_says "$server.log" "of memory with RDMA device $DEVICE: "
  assert_says "$server.log" "$in_force"
  assert_says "$server.log" "$advice"
done
train_timeout=120
train_over auto server-auto.json
assert_equal "transport" "$(result server-auto.json transport)" shm
prlimit --pid "${pids[1]}" --memlock=unlimited
prlimit --pid "${pids[2]}" --memlock=unlimited
train_over verbs server-unlimited.json
assert_equal "transport" "$(result server-unlimited.json transport)" verbs
stop_cluster
for hash in "${parameters[@]}"; do
  assert_equal "parameters" "$hash" "${parameters[0]}"
done
expect_no_rdma_resources
