#!/usr/bin/env bash
# guests: 2
# limit: 1200
# when: nightly
# needs: verbenad verbena-train tests/faults/push_counter
# Two servers in one guest, two workers in the other, and no packet passes in mid-training: for less
# time than the retry budget, then for more. Both end with the bits of an undisturbed run.
# Within the budget no lane is lost. Beyond it the servers name the lanes and the reason; the workers connect
# again and resend unanswered requests, which then count once; the same servers train anew.
# shellcheck source=tests/softroce/lib.sh
. "$SOFTROCE/lib.sh"
# shellcheck source=tests/softroce/training.sh
. "$SOFTROCE/training.sh"

train_batch=64
timed_out="transport retry counter exceeded"
any_server_says() { grep -qF -- "$1" server-*.log; }

# Nothing passes for that long. The servers' packets are cut off first: requests of the workers
# still arrive, so the servers send answers that are not acknowledged.
cut() {  # NAME SECONDS
  [ "$GUEST" -eq 2 ] || impair loss 100%
  barrier "cut-$1" 120
  [ "$GUEST" -eq 1 ] || impair loss 100%
  sleep "$2"
  restore
  barrier "restored-$1"
}

for length in short long; do
  # 4.096 us x 2^18 x (6 + 1) tries = 7.5 s; the default, 14, gives up after 0.5 s.
  timeout=18 seconds=3
  [ "$length" = short ] || timeout=14 seconds=6
  retries=$(counter completer_retry_err)
  if [ "$GUEST" -eq 1 ]; then
    start_cluster verbs "$CONTROL_HERE" --rdma-timeout "$timeout"
    share "coordinator-$length" "$(field coordinator address)"
    fetch "in-training-$length" 300 >/dev/null
    note "no packet passes"
    cut "$length" "$seconds"
    note "the wire is whole again"
    barrier "trained-$length" 400
    opened=$(lanes_opened)
    note "lanes opened: $opened"
    if [ "$length" = short ]; then
      assert_equal "lanes opened within the retry budget" "$opened" $((4 + links))
    else
      assert_at_least "lanes opened beyond the retry budget" "$opened" $((5 + links))
    fi
    barrier "again-$length" 400
    assert_at_least "lanes opened afterwards" "$(lanes_opened)" $((opened + 4))
    stop_cluster
  else
    coordinator=$(fetch "coordinator-$length" 120)
    train_start "$coordinator" verbs "$length.json" --rdma-timeout "$timeout"
    wait_for 200 trained_steps 4
    share "in-training-$length" yes
    cut "$length" "$seconds"
    train_wait
    assert_equal "workers lost" "$(result "$length.json" workers_lost)" 0
    barrier "trained-$length"
    train "$coordinator" verbs "$length-again.json" --rdma-timeout "$timeout"
    barrier "again-$length"
  fi
  retries=$(($(counter completer_retry_err) - retries))
  note "retries: $retries"
done

# Asynchronous pushes, each a step of its own: one that were lost or applied twice would show.
if [ "$GUEST" -eq 1 ]; then
  start_cluster verbs "$CONTROL_HERE"
  share coordinator-count "$(field coordinator address)"
  fetch in-training-count 120 >/dev/null
  cut count 6
  barrier counted 200
  assert "why lanes ended" any_server_says "over verbs ended: work completion failed: $timed_out"
  assert "a hint" any_server_says "the peer did not answer within the retry budget"
  stop_cluster
else
  coordinator=$(fetch coordinator-count 120)
  count_start "$coordinator"
  share in-training-count yes
  cut count 6
  count_end
  # A lane whose part of the push was answered before the cut is idle in it, and may survive.
  assert_at_least "lanes that the counting worker lost" "$count_lost" 1
  assert_at_least "records that it sent again" "$count_resent" 1
  barrier counted
fi

if [ "$GUEST" -eq 2 ]; then
  parameters=$(result short-again.json parameters_xxh64)
  assert_at_least "length of the parameters' hash" "${#parameters}" 8
  for run in short long long-again; do
    assert_equal "parameters of $run" "$(result "$run.json" parameters_xxh64)" "$parameters"
  done
fi
expect_no_rdma_resources
