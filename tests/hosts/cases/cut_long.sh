#!/usr/bin/env bash
# The cable of a server is out for longer than a lane lives in silence (10 s), but not as long as its
# lease: the workers open new lanes, and nothing is lost or applied twice.
# limit: 120
# shellcheck source=tests/hosts/lib.sh
. "$HOSTS/lib.sh"
start_cluster
train_start
wait_for 60 trained_steps 5
cut 2
sleep 14  # how long it is out is what the case is about
assert "the workers wait for the server" still_training
mend 2
train_wait
expect_reference
assert_at_least "lanes opened" "$(lanes_opened)" 6
stop_cluster
