#!/usr/bin/env bash
# The cable of a server is out for three seconds: TCP goes on, no lane is lost.
# limit: 90
# shellcheck source=tests/hosts/lib.sh
. "$HOSTS/lib.sh"
start_cluster
train_with_cut 2 3
assert_equal "lanes opened" "$(lanes_opened)" 4
stop_cluster
