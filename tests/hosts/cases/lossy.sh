#!/usr/bin/env bash
# One packet of a hundred is lost, in both directions, at a server and at a worker.
# limit: 150
# shellcheck source=tests/hosts/lib.sh
. "$HOSTS/lib.sh"
start_cluster
lose 2 10
lose 5 10
train_start
train_wait
expect_reference
for host in 2 5; do
  lost=$(lost_packets "$host")
  note "host $host lost $lost packets"
  assert_at_least "packets lost" "$lost" 10
done
stop_cluster
