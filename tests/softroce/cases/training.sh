#!/usr/bin/env bash
# guests: 1
# limit: 600
# needs: verbenad verbena-train
# A coordinator, two servers and two workers train over RDMA. The device's own counters show that
# the bytes went by RDMA writes; the result has the same bits as over shared memory.
# shellcheck source=tests/softroce/lib.sh
. "$SOFTROCE/lib.sh"
# shellcheck source=tests/softroce/training.sh
. "$SOFTROCE/training.sh"

train_batch=32
start_cluster verbs 127.0.0.1
sent=$(counter sent_pkts) sends=$(counter rdma_sends)
train "$(field coordinator address)" verbs verbs.json
sent=$(($(counter sent_pkts) - sent)) sends=$(($(counter rdma_sends) - sends))
payload=0
for server in server-0 server-1; do
  for name in verbena_shard_push_bytes_total verbena_shard_pull_bytes_total; do
    bytes=$(metric "$server" "$name")
    note "$server $name $bytes"
    assert_at_least "$server's $name" "$bytes" 1000000
    payload=$((payload + bytes))
  done
done
note "payload $payload bytes, $sent packets, $sends sends"
assert_equal "transport" "$(result verbs.json transport)" verbs
# Each path MTU's worth is a packet of its own; acknowledgements are counted too.
assert_at_least "packets sent" "$sent" $((payload / 4096))
# The connection manager sends, a few messages a lane; data never does.
assert_at_most "sends" "$sends" 100
stop_cluster
expect_no_rdma_resources

start_cluster shm 127.0.0.1
train "$(field coordinator address)" shm shm.json
stop_cluster
parameters=$(result verbs.json parameters_xxh64)
assert_at_least "length of the parameters' hash" "${#parameters}" 8
assert_equal "parameters trained over verbs" "$parameters" "$(result shm.json parameters_xxh64)"
