#!/usr/bin/env bash
# guests: 2
# limit: 120
# Two guests reach each other; lost packets are sent again, and the device's counters show it.
# shellcheck source=tests/softroce/lib.sh
. "$SOFTROCE/lib.sh"

ping_other() {  # ADDRESS PORT
  if [ "$GUEST" -eq 1 ]; then
    rping -s -a "$1" -p "$2" -C 20 -V &
    server=$!
    wait_for 10 listening "$2"
    share "listens-$2" yes
    assert "rping server" wait "$server"
  else
    fetch "listens-$2" >/dev/null
    assert "rping to $1" rping -c -a "$1" -p "$2" -C 20 -V
  fi
}

write_other() {  # PORT: 32 MB; perftest talks over the other wire, writes over this one
  # -u 14: lost packets are sent again after 67 ms. Less is exceeded by chance on a busy machine,
  # and a needless resend can end in an error of rxe's own (README.md).
  local command=(ib_write_bw -d "$DEVICE" -s 65536 -n 500 -u 14 -F -p "$1")
  if [ "$GUEST" -eq 1 ]; then
    "${command[@]}" >perftest.txt 2>&1 &
    server=$!
    wait_for 20 port_open "$1"
    share "listens-$1" yes
    assert "ib_write_bw server: $(cat perftest.txt)" wait "$server"
  else
    fetch "listens-$1" >/dev/null
    "${command[@]}" "$CONTROL_THERE" >perftest.txt 2>&1 || { cat perftest.txt; fail "ib_write_bw"; }
    note "bytes, iterations, MB/s peak, MB/s average: $(grep '^ *65536 ' perftest.txt)"
  fi
}

sent=$(counter sent_pkts)
ping_other 10.78.0.1 7174
ping_other fd78::1 7175
assert_at_least "packets sent" $(($(counter sent_pkts) - sent)) 20
note "rping works over IPv4 and IPv6"

retries=$(counter completer_retry_err)
write_other 7176
note "retries without loss: $(($(counter completer_retry_err) - retries))"

barrier before-loss
impair loss 1%
retries=$(counter completer_retry_err)
write_other 7177
retries=$(($(counter completer_retry_err) - retries))
note "retries with 1 % loss: $retries"
barrier after-loss
restore
# Guest 2 sent 8,000 packets, of which some 80 were lost.
if [ "$GUEST" -eq 2 ]; then assert_at_least "retries" "$retries" 1; fi
expect_no_rdma_resources
