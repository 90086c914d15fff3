#!/usr/bin/env bash
# guests: 2
# limit: 900
# needs: verbenad verbena-train
# Two servers in one guest, two workers in the other: a synchronous run with 1 % of the packets lost
# both ways ends with the same bits as one without loss.
# shellcheck source=tests/softroce/lib.sh
. "$SOFTROCE/lib.sh"
# shellcheck source=tests/softroce/training.sh
. "$SOFTROCE/training.sh"

train_batch=32
retries=0
for wire in whole lossy; do
  if [ "$wire" = lossy ]; then
    impair loss 1%
    retries=$(counter completer_retry_err)
  fi
  if [ "$GUEST" -eq 1 ]; then
    # The control plane goes over the wire that is never impaired; RDMA over the other.
    start_cluster verbs "$CONTROL_HERE"
    share "coordinator-$wire" "$(field coordinator address)"
    barrier "trained-$wire" 400
    stop_cluster
  else
    coordinator=$(fetch "coordinator-$wire" 120)
    train "$coordinator" verbs "$wire.json"
    barrier "trained-$wire"
  fi
done
barrier stopped
restore
retries=$(($(counter completer_retry_err) - retries))
note "retries: $retries"
# Pushes came from guest 2, pulls from guest 1, some 20 MB each: thousands of packets.
assert_at_least "retries" "$retries" 1
if [ "$GUEST" -eq 2 ]; then
  parameters=$(result whole.json parameters_xxh64)
  assert_at_least "length of the parameters' hash" "${#parameters}" 8
  assert_equal "parameters after loss" "$(result lossy.json parameters_xxh64)" "$parameters"
fi
expect_no_rdma_resources
