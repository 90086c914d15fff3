#!/usr/bin/env bash
# guests: 1
# limit: 900
# when: nightly
# needs: verbenad verbena-train tests/faults/client_faults_test tests/faults/training_test tests/faults/equivalence_test
# The process-level fault tests (killed and stopped servers and workers, regions given up in flight,
# the same bits every time), with all data going over verbs.
# shellcheck source=tests/softroce/lib.sh
. "$SOFTROCE/lib.sh"

export VERBENA_TEST_TRANSPORT=verbs
export VERBENA_VERBENAD=$BUILD/verbenad VERBENA_TRAIN=$BUILD/verbena-train
# Results of arithmetic do not depend on the transport: other transports' tests are enough.
for program in client_faults_test equivalence_test training_test; do
  "$BUILD/tests/faults/$program" --durations yes "~[arithmetic]"
done
expect_no_rdma_resources
