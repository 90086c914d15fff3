#!/usr/bin/env bash
# Training on five hosts over ofi gives the bits of one host's over shm.
# limit: 60
# shellcheck source=tests/hosts/lib.sh
. "$HOSTS/lib.sh"
start_cluster
train_start
train_wait
expect_reference
assert_equal "lanes opened" "$(lanes_opened)" 4
stop_cluster
