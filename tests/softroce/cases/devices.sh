#!/usr/bin/env bash
# guests: 1
# limit: 60
# The guest itself is sound: devices, memory, and librdmacm over IPv4 and IPv6.
# shellcheck source=tests/softroce/lib.sh
. "$SOFTROCE/lib.sh"

rdma link
for device in rxe0 rxe1; do
  rdma link show "$device/1" >link.txt
  assert_says link.txt "state ACTIVE"
  ibv_devinfo -d "$device" >devinfo.txt
  assert_says devinfo.txt "active_mtu:		4096"
done
assert_equal "memlock limit" "$(ulimit -l)" unlimited
assert_at_least "free huge pages" "$(awk '/^HugePages_Free/ { print $2 }' /proc/meminfo)" 1
assert "no /dev/shm" touch /dev/shm/probe
rm /dev/shm/probe

# rping compares the data that it writes by RDMA WRITE and reads by RDMA READ.
for address in 10.77.0.1 fd77::1 10.79.0.1; do
  rping -s -a "$address" -p 7174 -C 10 -V &
  server=$!
  wait_for 10 listening 7174
  assert "rping to $address" rping -c -a "$address" -p 7174 -C 10 -V
  assert "rping at $address" wait "$server"
  note "rping over $address works"
done
expect_no_rdma_resources
