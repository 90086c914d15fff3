#!/usr/bin/env bash
# guests: 1
# limit: 600
# needs: tests/rdma/rdma_transport_verbs_test
# The transports' conformance suite and the tests of verbs alone, on a real RDMA stack.
# shellcheck source=tests/softroce/lib.sh
. "$SOFTROCE/lib.sh"

VERBENA_VERBS_DEVICE=$DEVICE "$BUILD/tests/rdma/rdma_transport_verbs_test" --durations yes
expect_no_rdma_resources
