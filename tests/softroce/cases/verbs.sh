#!/usr/bin/env bash
# guests: 1
# limit: 900
# needs: tests/rdma/rdma_verbs_test tests/rdma/rdma_memory_test
# Properties that only a real device has: isolation of lanes, limits and their messages (also those of
# other providers, by a shim), lanes under load, 256 of them at a time, 1,000 that leave nothing
# behind; and memory in huge pages.
# shellcheck source=tests/softroce/lib.sh
. "$SOFTROCE/lib.sh"

VERBENA_VERBS_DEVICE=$DEVICE "$BUILD/tests/rdma/rdma_verbs_test" --durations yes
expect_no_rdma_resources
echo 40 >/proc/sys/vm/nr_hugepages
# But for the test of random pieces: two minutes in a guest, and no other pages in it than elsewhere.
"$BUILD/tests/rdma/rdma_memory_test" '~random pieces keep their contents*'
echo 0 >/proc/sys/vm/nr_hugepages
