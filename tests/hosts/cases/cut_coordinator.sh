#!/usr/bin/env bash
# While the coordinator cannot be reached, and leases hold, training goes on.
# limit: 90
# shellcheck source=tests/hosts/lib.sh
. "$HOSTS/lib.sh"
start_cluster
throttle 2 200mbit  # so that there is something left to do
train_start
wait_for 60 trained_steps 3
cut 1
wait_for 30 trained_steps 60
assert "the training is not over yet" still_training
mend 1
train_wait
expect_reference
stop_cluster
