#!/usr/bin/env bash
# guests: 1
# limit: 90
# when: nightly
# The speed of the stack itself, with which our figures are compared. No threshold.
# shellcheck source=tests/softroce/lib.sh
. "$SOFTROCE/lib.sh"

for size in 65536 262144; do
  before=$(counter sent_pkts)
  ib_write_bw -d "$DEVICE" -s "$size" -n 2000 -F -p 7175 >server.txt 2>&1 &
  wait_for 20 port_open 7175
  ib_write_bw -d "$DEVICE" -s "$size" -n 2000 -F -p 7175 10.77.0.1 >client.txt 2>&1 ||
    { cat client.txt; fail "ib_write_bw at $size bytes"; }
  wait
  note "ib_write_bw, bytes, iterations, MB/s peak, MB/s average: $(grep "^ *$size " client.txt)"
  assert_at_least "packets sent" $(($(counter sent_pkts) - before)) $((2000 * size / 4096))
done
expect_no_rdma_resources
