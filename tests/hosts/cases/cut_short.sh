#!/usr/bin/env bash
# The cable of a server is out for three seconds: TCP goes on, no lane is lost.
# limit: 90
# shellcheck source=tests/hosts/lib.sh
. "$HOSTS/lib.sh"
start_cluster
train_start
wait_for 60 trained_steps 5
cut 2
sleep 3  # how long it is out is what the case is about
assert "the workers wait for the server" still_training
mend 2
train_wait
expect_reference
assert_equal "lanes opened" "$(lanes_opened)" 4
stop_cluster
