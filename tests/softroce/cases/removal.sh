#!/usr/bin/env bash
# guests: 1
# limit: 900
# when: nightly
# needs: verbenad verbena-train tests/faults/push_counter
# The RDMA device is removed in mid-training and comes back: all programs let go of it at once, the
# training goes on where it was and ends with the same bits, and the servers train anew. Once with
# another device beside it, once without: then the list of devices is empty meanwhile.
# shellcheck source=tests/softroce/lib.sh
. "$SOFTROCE/lib.sh"
# shellcheck source=tests/softroce/training.sh
. "$SOFTROCE/training.sh"

train_batch=32
opened() { grep -cF "verbs on $DEVICE:1 (" "$1.log" || true; }
gone() { ! kill -0 "$1" 2>/dev/null; }

for devices in two one; do
  [ "$devices" = two ] || rdma link del rxe1
  start_cluster verbs 127.0.0.1
  count_start "$(field coordinator address)"
  train_start "$(field coordinator address)" verbs "$devices.json"
  wait_for 200 trained_steps 4
  # Ends when nothing uses the device any more; until then not even a signal ends it.
  started=$EPOCHREALTIME
  rdma link del "$DEVICE" &
  removal=$!
  wait_for 60 gone "$removal"
  assert "rdma link del $DEVICE" wait "$removal"
  note "removed after $(((${EPOCHREALTIME/./} - ${started/./}) / 1000)) ms"
  wait_for 20 servers_say "RDMA device $DEVICE:1 was removed"
  assert_says server-0.log "over verbs ended: RDMA device $DEVICE:1 was removed"
  kill -0 "$trainer" "$counter_pid" || {
    cat train.log count.log
    fail "the workers did not wait for the device"
  }
  rdma link add "$DEVICE" type rxe netdev veth0
  train_wait
  count_end
  assert_at_least "lanes that the counting worker lost" "$count_lost" 2
  # Between two pushes there is none.
  note "records that it sent again: $count_resent"
  assert_equal "workers lost" "$(result "$devices.json" workers_lost)" 0
  for server in server-0 server-1; do
    assert_at_least "how often $server has opened the device" "$(opened "$server")" 2
  done
  train "$(field coordinator address)" verbs "$devices-again.json"
  assert_equal "transport" "$(result "$devices-again.json" transport)" verbs
  stop_cluster
  expect_no_rdma_resources
done
parameters=$(result two-again.json parameters_xxh64)
assert_at_least "length of the parameters' hash" "${#parameters}" 8
for run in two one one-again; do
  assert_equal "parameters of $run" "$(result "$run.json" parameters_xxh64)" "$parameters"
done
