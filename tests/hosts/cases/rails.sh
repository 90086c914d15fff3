#!/usr/bin/env bash
# Two networks, a rail on each. The cables of a server are out one after the other in mid-training,
# for longer than a lane lives in silence: training goes on over the other rail, each comes back and
# carries its share again, and the bits are those of a run that nothing disturbed.
# limit: 150
# shellcheck source=tests/hosts/lib.sh
. "$HOSTS/lib.sh"
# %N% is the host.
security+=(--ofi-address "10.77.0.%N%,10.78.0.%N%")
client_security+=(--ofi-address "10.77.0.%N%,10.78.0.%N%")

open_lanes() { [ "$(metric 2 verbena_shard_lanes)" -eq "$1" ]; }
# Pulls and pushes of a dense table are a megabyte and more each step.
carries() { [ "$(received 2 "$1")" -gt "$2" ]; }  # NETWORK BYTES
both_carry() {
  local network
  for network in 0 1; do
    wait_for 30 carries "$network" $(($(received 2 "$network") + 200000))
  done
}

start_cluster
for network in 0 1; do throttle 2 20mbit "$network"; done  # so that there is something left to do
train_start
wait_for 60 trained_steps 5
wait_for 20 open_lanes 4  # two workers, two rails
both_carry
for network in 1 0; do
  before=$(step)
  cut 2 "$network"
  # A lane is given up after three seconds in silence: then its share goes to the other one.
  wait_for 30 beyond $((before + 8))
  assert "lanes are lost" open_lanes 2
  mend 2 "$network"
  wait_for 30 open_lanes 4
  both_carry
done
assert "the training is not over yet" still_training
train_wait
expect_reference
stop_cluster
