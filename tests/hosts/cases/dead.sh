#!/usr/bin/env bash
# The cable of a server stays out. Its lease ends, its partitions are lost, and the workers report it
# instead of waiting for ever.
# limit: 90
# when: nightly
# shellcheck source=tests/hosts/lib.sh
. "$HOSTS/lib.sh"
lease_ms=3000 timeout=12
start_cluster
train_start
wait_for 60 trained_steps 5
cut 3
for rank in 0 1; do
  if wait "${workers[$rank]}"; then fail "worker $rank ended well, without a server"; fi
  tail -n 3 "train-$rank.log"
  assert_says "train-$rank.log" "server-3"
done
