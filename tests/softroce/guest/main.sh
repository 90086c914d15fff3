#!/usr/bin/env bash
# Runs in a guest, as root, in a copy of the host's root file system: makes the network and the RDMA
# devices, then runs the cases of the plan one after another. /run/softroce is shared with run.sh
# (which reads results there) and with the other guest:
#
#     plan                    one case a line: NAME LIMIT-SECONDS FILE
#     environment             the environment of the cases
#     NAME/log.GUEST          its output
#     NAME/result.GUEST       "ok SECONDS" or "FAILED SECONDS REASON", when it has ended
#     NAME/shared/KEY         see share() in lib.sh
set -uo pipefail
share=/run/softroce
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
export GUEST
# shellcheck source=/dev/null
. "$share/environment"

# One process for many commands: starting one takes an emulated guest 50 to 100 ms.
network() {
  local device
  echo "softroce$GUEST" >/proc/sys/kernel/hostname
  # Addresses are usable at once.
  echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
  echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad
  {
    echo link set lo up
    # An MTU of 4200 carries an InfiniBand MTU of 4096.
    if [ "$GUEST" -eq 0 ]; then
      for device in veth0 veth1; do
        echo "link add $device mtu 4200 type veth peer name ${device}peer mtu 4200"
        echo "link set ${device}peer up"
        echo "link set $device up"
      done
      echo address add 10.77.0.1/24 dev veth0
      echo address add fd77::1/64 dev veth0 nodad
      echo address add 10.79.0.1/24 dev veth1
      echo address add fd79::1/64 dev veth1 nodad
    else
      echo link set eth0 mtu 4200 up
      echo link set eth1 mtu 4200 up
      echo "address add 10.78.0.$GUEST/24 dev eth0"
      echo "address add fd78::$GUEST/64 dev eth0 nodad"
      echo "address add 10.80.0.$GUEST/24 dev eth1"
    fi
  } | ip -batch -
}

rdma_device() {  # NAME NETDEV: makes it unless it is there
  [ -d "/sys/class/infiniband/$1" ] || rdma link add "$1" type rxe netdev "$2"
}

is_up() { [ "$(<"/sys/class/net/$1/operstate")" = up ]; }
# Before every case: whatever the last one removed or impaired is whole again.
devices() {
  local device
  if [ "$GUEST" -eq 0 ]; then
    for device in veth0peer veth0 veth1peer veth1; do
      is_up "$device" || ip link set "$device" up
    done
    rdma_device rxe0 veth0 && rdma_device rxe1 veth1
  else
    tc qdisc del dev eth0 root 2>/dev/null  # refused when there is none
    is_up eth0 || ip link set eth0 up
    rdma_device rxe0 eth0
  fi
}

# Programs other than this script: "PID PROGRAM" a line. All of them were started by a case. (The
# kernel's own threads have no program.)
programs() {
  local link pid program
  for link in /proc/[0-9]*/exe; do
    pid=${link#/proc/}
    pid=${pid%/exe}
    if [ "$pid" -eq 1 ] || [ "$pid" -eq "$$" ] || [ "$pid" -eq "$BASHPID" ]; then continue; fi
    # A builtin first: starting a program takes an emulated guest a tenth of a second.
    [ -e "$link" ] || continue
    program=$(readlink "$link") || continue
    printf '%s %s\n' "$pid" "$program"
  done
}
kill_all() {
  local pid left running
  for left in {1..100}; do
    running=$(programs)
    [ -n "$running" ] || return 0
    while read -r pid _; do kill -KILL "$pid" 2>/dev/null; done <<<"$running"
    sleep 0.05
  done
}

run_case() {  # NAME LIMIT FILE: its output to standard output; sets reason when it fails
  local name=$1 limit=$2 file=$3 status=0 left
  reason=""
  if ! devices; then reason="no RDMA device"; return; fi
  export CASE=$name CASE_FOLDER=/tmp/softroce.$name CASE_SHARE=$share/$name/shared
  mkdir -p "$CASE_FOLDER" "$CASE_SHARE"
  dmesg --clear
  (
    cd "$CASE_FOLDER" || exit
    ulimit -l unlimited
    ulimit -n 65536
    ulimit -c 0
    exec timeout -k 10 "$limit" bash -euo pipefail "$file" </dev/null
  ) || status=$?
  case "$status" in
    0) ;;
    124|137) reason="not done after $limit s" ;;
    *) reason="exit status $status" ;;
  esac
  left=$(programs)
  if [ -n "$left" ]; then
    printf 'left running:\n%s\n' "$left"
    reason=${reason:-left programs running}
  fi
  kill_all
  # shellcheck source=tests/softroce/lib.sh
  left=$(. "$SOFTROCE/lib.sh"; rdma_resources)
  if [ -n "$left" ]; then
    printf 'left in the kernel:\n%s\n' "$left"
    reason=${reason:-left RDMA resources}
  fi
  left=$(dmesg | grep -E 'BUG|WARNING|Oops|general protection|Call Trace|blocked for more than')
  [ -z "$left" ] || reason=${reason:-the kernel complained}
  if [ -n "$reason" ]; then
    left=$(dmesg | tail -n 40)
    [ -z "$left" ] || printf 'the kernel during this case:\n%s\n' "$left"
  fi
  rm -rf "$CASE_FOLDER"
}

started=$EPOCHREALTIME
elapsed() {  # SINCE: seconds with one digit
  local tenths=$(((${EPOCHREALTIME/./} - ${1/./}) / 100000))
  printf '%s.%s\n' $((tenths / 10)) $((tenths % 10))
}
network
devices
printf 'guest: ready %s s after the kernel started\n' "$(cut -d' ' -f1 /proc/uptime)"
while read -r name limit file; do
  started=$EPOCHREALTIME
  mkdir -p "$share/$name"
  run_case "$name" "$limit" "$file" >"$share/$name/log.$GUEST" 2>&1
  result="ok $(elapsed "$started")"
  [ -z "$reason" ] || result="FAILED $(elapsed "$started") $reason"
  printf '%s\n' "$result" >"$share/$name/result.$GUEST.new"
  mv "$share/$name/result.$GUEST.new" "$share/$name/result.$GUEST"
  # The next case starts on both guests together.
  if [ "$GUEST" -ne 0 ]; then
    until [ -e "$share/$name/result.$((3 - GUEST))" ]; do sleep 0.05; done
  fi
done <"$share/plan"
