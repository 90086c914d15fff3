#!/usr/bin/env bash
# For cases that train on a cluster, after lib.sh:  . "$SOFTROCE/training.sh"

# field SERVER MEMBER: of the ready file that it wrote.
field() { sed -nE "s/.*\"$2\" *: *\"?([^\",}]+)\"?.*/\1/p" "$1.ready" | head -n 1; }
is_ready() { [ -s "$1.ready" ] && grep -q '}' "$1.ready"; }
daemon() {  # NAME HOST OPTIONS...: listens at that address; its log is NAME.log
  local name=$1 host=$2
  shift 2
  "$BUILD/verbenad" --listen "$host:0" --metrics "$host:0" --name "$name" \
    --ready-file "$name.ready" "$@" >"$name.log" 2>&1 &
  pids+=("$!")
}
# One metric's sum over the shards of a server.
metric() {  # SERVER NAME
  local reply address
  address=$(field "$1" metrics)
  exec 8<>"/dev/tcp/${address%:*}/${address##*:}"
  printf 'GET /metrics HTTP/1.0\r\nHost: x\r\nConnection: close\r\n\r\n' >&8
  reply=$(cat <&8)
  exec 8>&-
  awk -v name="$2" '
    { n = $1; sub(/\{.*/, "", n) }
    n == name { sum += $2 }
    END { printf "%.0f\n", sum }' <<<"$reply"
}

pids=()
start_cluster() {  # TRANSPORT HOST: a coordinator and two servers
  local server
  pids=()
  rm -f ./*.ready
  # The lease: an emulated machine on a busy one may not run for seconds.
  daemon coordinator "$2" --coordinator --shards 0 --expected-servers 2 --lease-ms 30000
  wait_for 60 is_ready coordinator
  for server in server-0 server-1; do
    daemon "$server" "$2" --join "$(field coordinator address)" --transport "$1" \
      --rdma-device "$DEVICE"
  done
  for server in server-0 server-1; do wait_for 60 is_ready "$server"; done
}
stop_cluster() {  # the coordinator last: the others take their leave of it
  kill -TERM "${pids[1]}" "${pids[2]}"
  assert "server-0 ends well" wait "${pids[1]}"
  assert "server-1 ends well" wait "${pids[2]}"
  kill -TERM "${pids[0]}"
  assert "the coordinator ends well" wait "${pids[0]}"
}
train() {  # COORDINATOR TRANSPORT FILE: two workers; the result, a JSON object, to FILE
  "$BUILD/verbena-train" --cluster "$1" --transport "$2" --rdma-device "$DEVICE" --format text \
    --workers 2 --steps 12 --batch 256 --timeout 120 --checksum --json \
    --data /usr/share/common-licenses/GPL-2 /usr/share/common-licenses/GPL-3 >"$3" 2>train.log || {
    tail -n 20 ./*.log
    fail "verbena-train over $2"
  }
  cat "$3"
}
# result FILE MEMBER: of what train() wrote.
result() { sed -nE "s/.*\"$2\" *: *\"?([^\",}]+)\"?.*/\1/p" "$1"; }
