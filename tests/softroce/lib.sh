#!/usr/bin/env bash
# For cases, which run in a guest:  . "$SOFTROCE/lib.sh"
#
# In a case's environment: SOFTROCE (this folder), SOURCE (the checkout), BUILD (the build folder),
# DEVICE (rxe0), REPLICAS (run.sh --replicas), CASE (its name); the working directory is empty and the case's own. GUEST is 0 in a
# single guest, else 1 or 2.

# shellcheck source=tests/support/case.sh
. "$SOFTROCE/../support/case.sh"

# ---- the device ----------------------------------------------------------------------------------
# counter NAME [DEVICE]: one of the device's own counters, such as sent_pkts, rcvd_pkts, rdma_sends,
# completer_retry_err, rcvd_seq_err.
counter() { cat "/sys/class/infiniband/${2:-$DEVICE}/ports/1/hw_counters/$1"; }

# rdma_resources: objects of programs in the kernel's RDMA stack, one a line. (Objects of the kernel
# itself have no pid.)
rdma_resources() {
  local line
  printf 'resource show %s\n' qp cq mr pd cm_id ctx srq | rdma -f -b - 2>/dev/null |
    while read -r line; do
      case "$line" in *" pid "*) printf '%s\n' "$line" ;; esac
    done
}
# Closing is not instant: the kernel frees a queue pair when its last packet is through.
expect_no_rdma_resources() {
  local deadline=$((SECONDS + 11))
  until no_rdma_resources; do
    [ "$SECONDS" -lt "$deadline" ] || fail "left in the kernel: $(rdma_resources)"
    sleep 0.05
  done
}
no_rdma_resources() { [ -z "$(rdma_resources)" ]; }

# listening PORT: some program listens there with librdmacm.
listening() {
  local all
  all=$(rdma resource show cm_id)
  [[ $all =~ 'state LISTEN'[^$'\n']*' src-addr '[^\ ]*":$1 " ]]
}

# port_open PORT: some program listens there with TCP.
port_open() { [ -n "$(ss -Hltn "sport = :$1")" ]; }

# ---- two guests ----------------------------------------------------------------------------------
# The wire under test is eth0: 10.78.0.GUEST, fd78::GUEST. A second wire, eth1 (10.80.0.GUEST), is
# never impaired. The functions below use neither.
if [ "$GUEST" -ne 0 ]; then
  OTHER=$((3 - GUEST))
  # shellcheck disable=SC2034  # for cases
  HERE=10.78.0.$GUEST THERE=10.78.0.$OTHER CONTROL_HERE=10.80.0.$GUEST CONTROL_THERE=10.80.0.$OTHER
fi

# share KEY VALUE: lets the other guest fetch() it.
share() {
  printf '%s\n' "$2" >"$CASE_SHARE/.$1.$GUEST"
  mv "$CASE_SHARE/.$1.$GUEST" "$CASE_SHARE/$1"
}
# fetch KEY [SECONDS]: waits for it, prints it. Fails the case after that time (default 60), or when
# the other guest's case ends without it: as `value=$(fetch KEY)`, a statement of its own, because a
# substitution inside another command does not end the case.
fetch() {
  local deadline=$((SECONDS + ${2:-60} + 1))
  until [ -e "$CASE_SHARE/$1" ]; do
    # Looked for once more: it may have been shared just before the end.
    if [ -e "$CASE_SHARE/../result.$OTHER" ] && [ ! -e "$CASE_SHARE/$1" ]; then
      fail "the other guest ended ($(cat "$CASE_SHARE/../result.$OTHER")) before '$1'"
    fi
    [ "$SECONDS" -lt "$deadline" ] || fail "waited ${2:-60} s for '$1' of the other guest"
    sleep 0.05
  done
  cat "$CASE_SHARE/$1"
}
# barrier NAME [SECONDS]: both guests get here. A name is used once in a case.
barrier() {
  share "barrier-$1-$GUEST" reached
  fetch "barrier-$1-$OTHER" "${2:-60}" >/dev/null
}

# impair SPEC...: disturbs packets of this guest on the wire under test, as in tc-netem(8): "loss
# 1%", "loss 100%", "delay 10ms". Again: replaces. restore: no more.
impair() { tc qdisc replace dev eth0 root netem limit 10000 "$@"; }
restore() { tc qdisc del dev eth0 root; }
