#!/usr/bin/env bash
# For cases that train on a cluster, after lib.sh:  . "$SOFTROCE/training.sh"

# field SERVER MEMBER: of the ready file that it wrote.
field() { sed -nE "s/.*\"$2\" *: *\"?([^\",}]+)\"?.*/\1/p" "$1.ready" | head -n 1; }
is_ready() { [ -s "$1.ready" ] && grep -q '}' "$1.ready"; }
# The command to start programs with, such as prlimit with its options.
under=()
daemon() {  # NAME HOST OPTIONS...: listens at that address; its log is NAME.log
  local name=$1 host=$2
  shift 2
  "${under[@]}" "$BUILD/verbenad" --insecure --listen "$host:0" --metrics "$host:0" --name "$name" \
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
# Lanes that the two servers have to one another, for copies.
# shellcheck disable=SC2034  # for cases
links=$((REPLICAS > 1 ? 2 : 0))
start_cluster() {  # TRANSPORT HOST [OPTIONS...]: a coordinator and two servers, with these options
  local server transport=$1 host=$2
  shift 2
  pids=()
  rm -f ./*.ready
  # The lease: an emulated machine on a busy one may not run for seconds.
  daemon coordinator "$host" --coordinator --shards 0 --expected-servers 2 --lease-ms 30000 \
    --replicas "$REPLICAS"
  wait_for 60 is_ready coordinator
  for server in server-0 server-1; do
    daemon "$server" "$host" --join "$(field coordinator address)" --transport "$transport" \
      --rdma-device "$DEVICE" "$@"
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
# train COORDINATOR TRANSPORT FILE [OPTIONS...]: two workers; the result, a JSON object, to FILE.
train() {
  train_start "$@"
  train_wait
}
# train() in two parts, for actions in between.
# An undisturbed case has to move bytes, not to spend time: its model is tested on a few bytes only.
train_timeout=120 train_batch=128 train_steps=12
train_start() {
  local coordinator=$1 transport=$2 file=$3
  shift 3
  training=$transport result_file=$file
  "${under[@]}" "$BUILD/${trainer_program:-verbena-train}" --cluster "$coordinator" --transport "$transport" \
    --rdma-device "$DEVICE" --format text --workers 2 --steps "$train_steps" --batch "$train_batch" \
    --timeout "$train_timeout" --holdout 0.001 --checksum --json --log-steps "$@" \
    --data /usr/share/common-licenses/GPL-2 /usr/share/common-licenses/GPL-3 \
    >"$result_file" 2>train.log &
  trainer=$!
}
train_wait() {
  wait "$trainer" || {
    tail -n 20 ./*.log
    fail "verbena-train over $training"
  }
  cat "$result_file"
}
train_fails() {
  if wait "$trainer"; then
    cat train.log
    fail "verbena-train over $training ended well"
  fi
}
# trained_steps N: some worker has done that many.
trained_steps() { grep -q " step $1\$" train.log; }
# lanes_opened: by all servers. Two workers that lose none open four.
lanes_opened() {
  local server sum=0
  for server in server-0 server-1; do
    sum=$((sum + $(metric "$server" verbena_shard_lanes_opened_total)))
  done
  echo "$sum"
}
servers_say() {  # TEXT: every server's log
  grep -qF -- "$1" server-0.log && grep -qF -- "$1" server-1.log
}
# result FILE MEMBER: a member of the JSON that train() wrote.
result() { sed -nE "s/.*\"$2\" *: *\"?([^\",}]+)\"?.*/\1/p" "$1"; }

# Pushes that are counted (tests/faults/push_counter.cc), in the background; count_end checks that
# each was applied exactly once, and sets `count_pushes`, `count_lost` (lanes) and
# `count_resent` (records).
count_start() {  # COORDINATOR
  rm -f count.stop
  "$BUILD/tests/faults/push_counter" "$1" "$DEVICE" count.stop >count.log 2>&1 &
  counter_pid=$!
  wait_for 60 count_beyond 0
}
count_beyond() {  # N: more pushes than that are done
  local line
  line=$(tail -n 1 count.log)
  [[ $line =~ ^[0-9]+\ pushes ]] && [ "${line%% *}" -gt "$1" ]
}
count_end() {
  local pushes
  pushes=$(tail -n 1 count.log)
  wait_for 120 count_beyond "${pushes%% *}"  # it goes on
  touch count.stop
  wait "$counter_pid" || { cat count.log; fail "pushes were lost, or applied twice"; }
  note "$(tail -n 1 count.log)"
  # shellcheck disable=SC2034  # for cases
  read -r count_pushes _ count_lost _ _ count_resent _ <<<"$(tail -n 1 count.log)"
}
# Trains once more, undisturbed: FILE's run must have had the same bits, and lost nobody.
expect_undisturbed() {  # FILE
  local parameters
  assert_equal "workers lost" "$(result "$1" workers_lost)" 0
  train "$(field coordinator address)" verbs again.json
  parameters=$(result again.json parameters_xxh64)
  assert_at_least "length of the parameters' hash" "${#parameters}" 8
  assert_equal "parameters" "$(result "$1" parameters_xxh64)" "$parameters"
}
