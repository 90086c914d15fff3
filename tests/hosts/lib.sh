#!/usr/bin/env bash
# For cases:  . "$HOSTS/lib.sh"
#
# In a case's environment: HOSTS (this folder), SOURCE (the checkout), BUILD (the build folder), WORK
# (a folder of all cases); the working directory is empty and the case's own. Host 1 is for the
# coordinator, 2, 3 and 6 are for servers, 4 and 5 for workers. Host N is 10.77.0.N and fd77::N, and on
# a second network, for cases with rails, 10.78.0.N.

# shellcheck source=tests/support/case.sh
. "$SOURCE/tests/support/case.sh"

on() {  # HOST COMMAND...
  local host=$1
  shift
  ip netns exec "$NET-$host" "$@"
}
# The same in the background; $! is the command's own process.
start_on() {  # HOST OUTPUT ERRORS COMMAND...
  local host=$1 output=$2 errors=$3
  shift 3
  ip netns exec "$NET-$host" "$@" >"$output" 2>"$errors" &
}
# ---- the network ---------------------------------------------------------------------------------
port() { if [ "$2" = 0 ]; then echo "port$1"; else echo "rail$1"; fi; }
# HOST [NETWORK]: its cable is out; of the first network (0) unless the second (1) is meant.
cut() { ip -n "$NET-0" link set "$(port "$1" "${2:-0}")" down; }
mend() { ip -n "$NET-0" link set "$(port "$1" "${2:-0}")" up; }
throttle() {  # HOST RATE [NETWORK]: in both directions, in the syntax of tc-tbf(8)
  tc -n "$NET-$1" qdisc replace dev "eth${3:-0}" root tbf rate "$2" burst 256kb latency 400ms
  tc -n "$NET-0" qdisc replace dev "$(port "$1" "${3:-0}")" root tbf rate "$2" burst 256kb latency 400ms
}
received() { on "$1" cat "/sys/class/net/eth$2/statistics/rx_bytes"; }  # HOST NETWORK: bytes
lose() {  # HOST PERMILLE: of the packets that come and of those that go
  on "$1" nft -f - <<NFT
table inet lossy {
  chain in { type filter hook input priority 0; iifname "eth0" numgen random mod 1000 < $2 counter drop; }
  chain out { type filter hook output priority 0; oifname "eth0" numgen random mod 1000 < $2 counter drop; }
}
NFT
}
lost_packets() {  # HOST: by lose()
  on "$1" nft list table inet lossy | sed -nE 's/.*counter packets ([0-9]+).*/\1/p' |
    awk '{ sum += $1 } END { print sum }'
}

# ---- a cluster -----------------------------------------------------------------------------------
family=4
address() { if [ "$family" = 6 ]; then echo "[fd77::$1]"; else echo "10.77.0.$1"; fi; }  # HOST
security=(--insecure)  # of daemons; an array of options
client_security=()     # of workers
lease_ms=30000
server_hosts=(2 3)
coordinator_options=()
pids=()
is_ready() { [ -s "$1.ready" ] && grep -q '}' "$1.ready"; }
daemon() {  # NAME HOST OPTIONS...
  local name=$1 host=$2
  shift 2
  # A certificate is the host's: %N% in an option is its number.
  start_on "$host" "$name.out" "$name.log" "$BUILD/verbenad" "${security[@]//%N%/$host}" \
    --listen "$(address "$host"):7000" --metrics 127.0.0.1:9090 --name "$name" \
    --ready-file "$name.ready" "$@"
  pids+=("$!")
}
server_options=(--transport ofi)
start_cluster() {
  local host
  daemon coordinator 1 --coordinator --shards 0 --expected-servers "${#server_hosts[@]}" \
    --lease-ms "$lease_ms" "${coordinator_options[@]}"
  wait_for 30 is_ready coordinator
  for host in "${server_hosts[@]}"; do
    daemon "server-$host" "$host" --join "$(address 1):7000" "${server_options[@]}"
  done
  for host in "${server_hosts[@]}"; do wait_for 30 is_ready "server-$host"; done
}
stop_cluster() {  # the coordinator last: the others take their leave of it
  local pid
  kill -TERM "${pids[@]:1}"
  for pid in "${pids[@]:1}"; do assert "the server with pid $pid ends well" wait "$pid"; done
  kill -TERM "${pids[0]}"
  assert "the coordinator ends well" wait "${pids[0]}"
}
metric() {  # HOST NAME: the sum over the shards of the server there
  # shellcheck disable=SC2016 # for the other shell
  on "$1" bash -c 'exec 8<>/dev/tcp/127.0.0.1/9090
    printf "GET /metrics HTTP/1.0\r\nHost: x\r\nConnection: close\r\n\r\n" >&8; cat <&8' |
    awk -v name="$2" '{ n = $1; sub(/\{.*/, "", n) } n == name { sum += $2 } END { printf "%.0f\n", sum }'
}
lanes_opened() { echo $(($(metric 2 verbena_shard_lanes_opened_total) + $(metric 3 verbena_shard_lanes_opened_total))); }

# ---- training ------------------------------------------------------------------------------------
steps=250 timeout=120 transport=ofi
worker_hosts=(4 5)
options() {  # of every worker, one a line
  printf '%s\n' --format text --workers "${#worker_hosts[@]}" --steps "$steps" --batch 128 --timeout "$timeout" \
    --checksum --json --log-steps --job hosts \
    --data /usr/share/common-licenses/GPL-2 /usr/share/common-licenses/GPL-3
}
workers=()
train_start() {  # a worker on each of worker_hosts
  local rank all host
  mapfile -t all < <(options)
  workers=()
  for rank in "${!worker_hosts[@]}"; do
    host=${worker_hosts[$rank]}
    start_on "$host" "result-$rank" "train-$rank.log" "$BUILD/verbena-train" \
      --cluster "$(address 1):7000" --rank "$rank" --transport "$transport" \
      "${client_security[@]//%N%/$host}" "${all[@]}"
    workers+=("$!")
  done
}
train_wait() {
  local rank
  for rank in "${!workers[@]}"; do
    wait "${workers[$rank]}" || { tail -n 20 ./*.log; fail "worker $rank"; }
  done
  cat result-0
}
step() { sed -nE 's/.* step ([0-9]+)$/\1/p' train-0.log | tail -n 1; }  # worker 0's last
beyond() { [ "$(step)" -ge "$1" ]; }  # N: it is there
trained_steps() { grep -q " step $1\$" train-0.log; }  # N: worker 0 has done that many
# train_with_cut HOST SECONDS: its cable is out for that long in mid-training.
train_with_cut() {
  train_start
  wait_for 60 trained_steps 5
  cut "$1"
  sleep "$2"  # the length of the outage is the subject of the case
  assert "the workers wait for the server" still_training
  mend "$1"
  train_wait
  expect_reference
}
still_training() { ! trained_steps "$steps"; }
checksum() { sed -nE 's/.*"parameters_xxh64" *: *"([^"]+)".*/\1/p' "$1"; }
# The result of one host over shm with the same workers, servers and steps: made once.
reference() {
  local file=$WORK/reference-${#worker_hosts[@]}-$steps all
  if [ ! -s "$file" ]; then
    mapfile -t all < <(options)
    (
      mkdir "$file.shm"
      cd "$file.shm" || exit
      start_on 1 shm.out shm.log "$BUILD/verbenad" --coordinator --shards 2 --transport shm \
        --listen 127.0.0.1:7100 --name shm --ready-file shm.ready
      server=$!
      wait_for 30 is_ready shm
      on 1 "$BUILD/verbena-train" --cluster 127.0.0.1:7100 --transport shm "${all[@]}" \
        >result 2>train.log || { cat train.log; fail "training over shm"; }
      kill -TERM "$server"
      wait "$server"
      checksum result
    ) >"$file.new"
    mv "$file.new" "$file"
  fi
  cat "$file"
}
# The result of train_wait() has the bits of the reference.
expect_reference() {
  local want
  want=$(reference)
  [ -n "$want" ] || fail "the training over shm has no checksum"
  assert_equal "the checksum of the parameters" "$(checksum result-0)" "$want"
}
