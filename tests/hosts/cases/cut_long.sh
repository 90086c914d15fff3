#!/usr/bin/env bash
# The cable of a server is out for longer than a lane lives in silence (10 s), but not as long as its
# lease: the workers open new lanes, and nothing is lost or applied twice.
# limit: 120
# when: nightly
# shellcheck source=tests/hosts/lib.sh
. "$HOSTS/lib.sh"
start_cluster
train_with_cut 2 14
assert_at_least "lanes opened" "$(lanes_opened)" 6
stop_cluster
