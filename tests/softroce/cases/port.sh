#!/usr/bin/env bash
# guests: 1
# limit: 600
# when: nightly
# needs: verbenad verbena-train
# A port that goes down in mid-training while packets still pass, and up again, costs no lane: a
# failed send would report itself. It is logged.
# shellcheck source=tests/softroce/lib.sh
. "$SOFTROCE/lib.sh"
# shellcheck source=tests/softroce/training.sh
. "$SOFTROCE/training.sh"

train_batch=64
start_cluster verbs 127.0.0.1
train_start "$(field coordinator address)" verbs disturbed.json
wait_for 200 trained_steps 4
# The other end of the wire: the port loses its link; packets of the device to itself still pass.
ip link set veth0peer down
wait_for 20 servers_say "RDMA device $DEVICE: port error (port 1)"
rdma link show "$DEVICE/1" >link.txt
assert_says link.txt "state DOWN"
wait_for 200 trained_steps 7
ip link set veth0peer up
wait_for 20 servers_say "RDMA device $DEVICE: port active (port 1)"
train_wait
assert_equal "lanes opened" "$(lanes_opened)" $((4 + links))
expect_undisturbed disturbed.json
stop_cluster
expect_no_rdma_resources
