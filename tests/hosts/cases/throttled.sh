#!/usr/bin/env bash
# The network of a server and of a worker is slow: everything takes longer, and is as right.
# limit: 120
# shellcheck source=tests/hosts/lib.sh
. "$HOSTS/lib.sh"
start_cluster
throttle 3 200mbit
throttle 4 200mbit
train_start
train_wait
expect_reference
assert_equal "lanes opened" "$(lanes_opened)" 4
stop_cluster
