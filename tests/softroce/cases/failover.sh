#!/usr/bin/env bash
# guests: 1
# limit: 900
# when: nightly
# needs: verbenad verbena-train verbena tests/faults/failover_test
# Servers are killed and stopped under training, where every partition has two copies: it ends with
# the bits of an undisturbed run, all data and all records to copies going over verbs.
# shellcheck source=tests/softroce/lib.sh
. "$SOFTROCE/lib.sh"

export VERBENA_TEST_TRANSPORT=verbs
export VERBENA_VERBENAD=$BUILD/verbenad VERBENA_TRAIN=$BUILD/verbena-train VERBENA_CLI=$BUILD/verbena
# An emulated machine on a busy one may not run for seconds.
export VERBENA_FAILOVER_KILLS=1 VERBENA_FAILOVER_STOPS=1 VERBENA_FAILOVER_LEASE_MS=8000
export VERBENA_FAILOVER_STEPS=250
"$BUILD/tests/faults/failover_test" --durations yes "servers *"
expect_no_rdma_resources
