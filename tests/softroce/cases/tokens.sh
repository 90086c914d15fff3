#!/usr/bin/env bash
# guests: 1
# limit: 300
# needs: tests/server/shard_executor_test
# Lanes over verbs: wrong, replayed and late tokens, tokens of a worker that is gone, and data that
# is no hello are refused with the reason, and the shard works on.
# shellcheck source=tests/softroce/lib.sh
. "$SOFTROCE/lib.sh"

VERBENA_TEST_TRANSPORT=verbs VERBENA_VERBS_DEVICE=$DEVICE \
  "$BUILD/tests/server/shard_executor_test" "[verbs]" --durations yes
expect_no_rdma_resources
