#!/usr/bin/env bash
# Every partition has two replicas, on two of three servers. Each server's cable is out in turn, and one
# server is stopped, all for longer than a lease: training goes on meanwhile, the server that was
# away catches up, and the bits are those of an undisturbed run.
# limit: 240
# when: nightly
# shellcheck source=tests/hosts/lib.sh
. "$HOSTS/lib.sh"
server_hosts=(2 3 6) worker_hosts=(4 5 4 5)
lease_ms=2000 coordinator_options=(--replicas 2)
steps=600

status() { on 1 "$BUILD/verbena" --cluster "$(address 1):7000" status --json; }
# All partitions have a follower, and all three servers are there.
replicated() {
  local all
  all=$(status) || return 1
  [[ $all =~ '"healthy": true' && $all =~ '"incomplete": 0, "learners": 0' ]]
}
goes_on() { wait_for 30 beyond $(($(step) + 10)); }  # training, from now

start_cluster
for host in "${server_hosts[@]}"; do throttle "$host" 500mbit; done  # so that there is something left to do
train_start
wait_for 60 trained_steps 5
for host in "${server_hosts[@]}"; do
  wait_for 60 replicated
  cut "$host"
  sleep $((2 * lease_ms / 1000))  # the duration is the subject of the case
  goes_on
  mend "$host"
done
wait_for 60 replicated
kill -STOP "${pids[1]}"
sleep $((2 * lease_ms / 1000))
goes_on
kill -CONT "${pids[1]}"
assert "the training is not over yet" still_training
wait_for 60 replicated
train_wait
expect_reference
stop_cluster
