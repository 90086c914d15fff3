#!/usr/bin/env bash
# guests: 1
# limit: 900
# needs: verbenad verbena-train tests/faults/push_counter tests/faults/paused_train
# Two devices, a rail each. One is removed in mid-training: training and counted pushes go on over the
# other, it comes back and carries its share again, and the bits are those of a run that nothing
# disturbed.
# shellcheck source=tests/softroce/lib.sh
. "$SOFTROCE/lib.sh"
# shellcheck source=tests/softroce/training.sh
. "$SOFTROCE/training.sh"

DEVICE=rxe0,rxe1  # of all programs
train_steps=70 train_batch=16
lanes_open() {
  echo $(($(metric server-0 verbena_shard_lanes) + $(metric server-1 verbena_shard_lanes)))
}
open_lanes() { [ "$(lanes_open)" -eq "$1" ]; }
gone() { ! kill -0 "$1" 2>/dev/null; }
step() { sed -nE 's/.* step ([0-9]+)$/\1/p' train.log | sort -n | tail -n 1; }
beyond() { [ "$(step)" -ge "$1" ]; }
carries() { [ "$(counter sent_pkts "$1")" -gt "$2" ]; }  # DEVICE PACKETS
both_carry() {
  local device
  for device in rxe0 rxe1; do
    wait_for 60 carries "$device" $(($(counter sent_pkts "$device") + 200))
  done
}

start_cluster verbs 127.0.0.1
count_start "$(field coordinator address)"
# The last steps wait, so that the training does not end, and its lanes with it, before both rails
# carry again.
trainer_program=tests/faults/paused_train PAUSE_AFTER_STEP=$((train_steps - 5)) PAUSE_UNTIL=$PWD/both \
  train_start "$(field coordinator address)" verbs disturbed.json
wait_for 200 trained_steps 2
# Three workers, two servers, two rails; servers have one lane to each other.
wait_for 60 open_lanes $((12 + links))
both_carry
rdma link del rxe1 &
removal=$!
wait_for 60 gone "$removal"
assert "rdma link del rxe1" wait "$removal"
wait_for 60 servers_say "RDMA device rxe1:1 was removed"
before=$(step)
wait_for 200 beyond $((before + 3))
wait_for 60 count_beyond "$(awk 'END { print $1 }' count.log)"
wait_for 60 open_lanes $((6 + links))
note "step $(step): rxe1 is gone, and training goes on"
rdma link add rxe1 type rxe netdev veth1
wait_for 60 open_lanes $((12 + links))
note "step $(step): rxe1 is back"
touch both
both_carry
train_wait
count_end
assert_at_least "lanes that the counting worker lost" "$count_lost" 2
expect_undisturbed disturbed.json
stop_cluster
expect_no_rdma_resources
