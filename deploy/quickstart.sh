#!/usr/bin/env bash
# From a fresh Debian machine to a trained model: installs missing packages, builds, starts a
# cluster on loopback, trains, shows the work of the servers, stops everything. `--help` for options.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
  cat <<'EOF'
usage: bash deploy/quickstart.sh [OPTIONS]
       bash deploy/quickstart.sh --python [--help] [OPTIONS]    trains a PyTorch model

Trains a byte-level language model on the licence texts of every Debian machine
(/usr/share/common-licenses), or on your data, with a cluster on this machine.

  --servers N        verbenad processes that hold the model (default 2)
  --shards N         executor threads in each (default 2)
  --workers N        processes that train (default 2)
  --consistency C    sync: every step waits for every worker; async: none does; ssp or ssp:N: as
                     async, but no worker is more than N steps ahead (4 without :N) (default sync)
  --transport T      auto, shm, verbs or ofi (default auto: the best that works)
  --format F         text or libsvm (default text)
  --data FILE...     train on these
  --test FILE        measure quality on this (text without it: the last tenth of the data's bytes)
  --train-option O   one more option for verbena-train, such as --train-option=--epochs=2
  --json             standard output is exactly one JSON object; progress goes to standard error
  --bin-dir DIR      use the programs that were built in DIR; install and build nothing
  --keep             keep the folder with logs and state, and print its path
  --help             this

It takes ports the system picks and a temporary folder of its own, so several may run at once.
EOF
}

# With --json only the object goes to the caller's standard output.
exec 3>&1
json=0
die() { printf 'quickstart: %s\n' "$*" >&2; exit 1; }
wrong() { printf 'quickstart: %s (see --help)\n' "$*" >&2; exit 2; }

if [ "${1:-}" = --python ]; then
  shift
  exec bash "$root/deploy/quickstart_python.sh" "$@"
fi
servers=2 shards=2 workers=2 consistency=sync transport=auto format=text
test_file="" bin_dir="" keep=0
data=() train_options=()
while [ "$#" -gt 0 ]; do
  option=$1
  case "$option" in
    --*=*) shift; set -- "${option%%=*}" "${option#*=}" "$@"; option=$1 ;;
  esac
  case "$option" in
    --json) json=1; shift; continue ;;
    --keep) keep=1; shift; continue ;;
    --help|-h) usage; exit 0 ;;
    --servers|--shards|--workers|--consistency|--transport|--format|--test|--bin-dir|\
    --train-option|--data) ;;
    *) wrong "unknown option '$option'" ;;
  esac
  [ "$#" -ge 2 ] || wrong "$option wants a value"
  case "$option" in
    --servers) servers=$2 ;;
    --shards) shards=$2 ;;
    --workers) workers=$2 ;;
    --consistency) consistency=$2 ;;
    --transport) transport=$2 ;;
    --format) format=$2 ;;
    --test) test_file=$2 ;;
    --bin-dir) bin_dir=$2 ;;
    --train-option) train_options+=("$2") ;;
    --data)
      while [ "$#" -ge 2 ] && [[ $2 != --* ]]; do data+=("$2"); shift; done
      [ "${#data[@]}" -gt 0 ] || wrong "--data wants at least one file"
      shift
      continue ;;
  esac
  shift 2
done
for number in servers shards workers; do
  [[ ${!number} =~ ^[1-9][0-9]{0,3}$ ]] || wrong "--$number is '${!number}'; wanted: 1 to 9999"
done
staleness=()
case "$consistency" in
  sync|async|ssp) ;;
  ssp:*)
    steps=${consistency#ssp:}
    # As many as the servers allow (verbena-train --staleness).
    if ! [[ $steps =~ ^(0|[1-9][0-9]{0,6})$ ]] || [ "$steps" -gt 1000000 ]; then
      wrong "--consistency is '$consistency'; the N of ssp:N is 0 to 1000000 steps"
    fi
    consistency=ssp staleness=(--staleness "$steps") ;;
  *) wrong "--consistency is '$consistency'; allowed: sync, async, ssp, ssp:N" ;;
esac
case "$transport" in
  auto|shm|verbs|ofi) ;;
  *) wrong "--transport is '$transport'; allowed: auto, shm, verbs, ofi" ;;
esac
case "$format" in text|libsvm) ;; *) wrong "--format is '$format'; allowed: text, libsvm" ;; esac
[ "$format" = text ] || [ "${#data[@]}" -gt 0 ] || wrong "--format libsvm wants --data"
for file in "${data[@]}" ${test_file:+"$test_file"}; do
  if [ ! -r "$file" ] || [ ! -f "$file" ]; then wrong "cannot read '$file'"; fi
done
[ "$json" -eq 0 ] || exec 1>&2

# ---- everything started here is stopped here -----------------------------------------------------
work=""
started=()  # process ids, each the leader of its own session
stop() {  # PIDS: SIGTERM, then up to 10 s for them to go
  local left=200
  [ "$#" -gt 0 ] || return 0
  kill -TERM "$@" 2>/dev/null
  kill -CONT "$@" 2>/dev/null
  while kill -0 "$@" 2>/dev/null && [ "$left" -gt 0 ]; do left=$((left - 1)); sleep 0.05; done
}
finish() {
  trap '' INT TERM HUP
  local pid
  # The coordinator, which was started first, last: the others want to take their leave of it.
  stop "${started[@]:1}"
  stop "${started[@]:0:1}"
  # Processes that did not end, and children whose parent was killed.
  for pid in "${started[@]}"; do kill -KILL -- "-$pid" 2>/dev/null; done
  wait 2>/dev/null
  if [ -n "$work" ]; then
    if [ "$keep" -eq 1 ]; then
      printf 'quickstart: logs and state are kept in %s\n' "$work"
    else
      rm -rf "$work"
    fi
  fi
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# A session of its own, so that Ctrl-C reaches this script alone, which then stops things in order.
# (3 is the caller's standard output: a reader that waits for its end does not wait for a daemon.)
start() { setsid "$@" 3>&- & started+=("$!"); }
# In the background and waited for: a signal is acted on at once, not when the program has ended.
run() {
  start "$@"
  local pid=$! status=0
  wait "$pid" || status=$?
  unset 'started[-1]'
  return "$status"
}
show_log() {  # NAME
  printf -- '---- the end of its log:\n' >&2
  tail -n 15 "$work/$1.log" >&2
  printf -- '----\n' >&2
}

# ---- build ---------------------------------------------------------------------------------------
if [ -z "$bin_dir" ]; then
  # shellcheck source=deploy/packages.sh
  . "$root/deploy/packages.sh"
  ensure_packages build || die "packages are missing (see above)"
  bin_dir=$root/build/release
  mkdir -p "$root/build"
  printf 'Building into build/release (the first time takes some minutes).\n'
  # Two quickstarts of one checkout take turns.
  exec 9>"$root/build/.quickstart.lock"
  flock 9 || die "cannot lock $root/build"
  if [ ! -f "$bin_dir/build.ninja" ]; then
    run cmake -S "$root" --preset release >"$root/build/release-configure.log" 2>&1 9>&- || {
      tail -n 30 "$root/build/release-configure.log" >&2
      die "cmake failed: the whole message is in build/release-configure.log"
    }
  fi
  run ninja -C "$bin_dir" verbenad verbena verbena-train 9>&- || die "the build failed (see above)"
  exec 9>&-
fi
verbenad=$bin_dir/verbenad
train=$bin_dir/verbena-train
verbena=$bin_dir/verbena
for program in "$verbenad" "$verbena" "$train"; do
  [ -x "$program" ] || die "there is no $program"
done

# ---- data ----------------------------------------------------------------------------------------
if [ "${#data[@]}" -eq 0 ]; then
  licences=/usr/share/common-licenses
  # Links there name the newest version of a licence: its text would count twice.
  mapfile -d '' -t data < <(
    find "$licences" -maxdepth 1 -type f -print0 2>/dev/null | LC_ALL=C sort -z)
  [ "${#data[@]}" -gt 0 ] || die "no files in $licences: name some with --data"
fi

# ---- cluster -------------------------------------------------------------------------------------
work=$(mktemp -d "${TMPDIR:-/tmp}/verbena-quickstart.XXXXXXXX") || die "cannot make a temporary folder"
field() { sed -nE "s/.*\"$2\" *: *\"?([^\",}]+)\"?.*/\1/p" "$work/$1.ready" | head -n 1; }
daemon() {  # NAME OPTIONS...
  local name=$1
  shift
  start "$verbenad" --listen 127.0.0.1:0 --metrics 127.0.0.1:0 --name "$name" \
    --ready-file "$work/$name.ready" "$@" >"$work/$name.log" 2>&1
}
await() {  # NAME PID: until it has reported that it is ready
  local left=300
  until [ -s "$work/$1.ready" ] && grep -q '}' "$work/$1.ready"; do
    left=$((left - 1))
    if ! kill -0 "$2" 2>/dev/null; then show_log "$1"; die "$1 ended before it was ready"; fi
    if [ "$left" -le 0 ]; then show_log "$1"; die "$1 was not ready after 30 s"; fi
    sleep 0.1
  done
}
printf 'Starting a coordinator and %d servers of %d shards.\n' "$servers" "$shards"
daemon coordinator --coordinator --shards 0 --state "$work/state" --expected-servers "$servers"
await coordinator "${started[-1]}"
cluster=$(field coordinator address)
[ -n "$cluster" ] || die "the coordinator did not say where it listens"
for ((i = 0; i < servers; i++)); do
  daemon "server-$i" --join "$cluster" --shards "$shards"
done
for ((i = 0; i < servers; i++)); do await "server-$i" "${started[i + 1]}"; done
for ((i = 0; i < servers; i++)); do
  printf '  server-%d  control %s  metrics http://%s/metrics\n' "$i" \
    "$(field "server-$i" address)" "$(field "server-$i" metrics)"
done

# ---- train ---------------------------------------------------------------------------------------
command=("$train" --cluster "$cluster" --format "$format" --workers "$workers"
  --consistency "$consistency" "${staleness[@]}" --transport "$transport"
  --data "${data[@]}" ${test_file:+--test "$test_file"} "${train_options[@]}")
printf 'Training with %d workers, %s, on %d files.\n' "$workers" "$consistency" "${#data[@]}"
if [ "$json" -eq 1 ]; then
  run "${command[@]}" --json >"$work/train.json" || die "training failed (see above)"
else
  run "${command[@]}" || die "training failed (see above)"
fi

# Count models of the same training bytes, for scale.
counts='{}'
if [ "$format" = text ]; then
  run "$train" --format text --count-models --json --data "${data[@]}" \
    ${test_file:+--test "$test_file"} >"$work/counts.json" || die "the count models failed (see above)"
  counts=$(tr -d '\n' <"$work/counts.json")
fi

# ---- the work of each shard, from the metrics endpoints ------------------------------------------
fetch() {  # HOST:PORT PATH, over bash's own sockets: curl need not be there
  local reply
  exec 8<>"/dev/tcp/${1%:*}/${1##*:}" || return 1
  printf 'GET %s HTTP/1.0\r\nHost: %s\r\nConnection: close\r\n\r\n' "$2" "$1" >&8
  reply=$(cat <&8)
  exec 8>&-
  case "$reply" in "HTTP/"*" 200"*) printf '%s\n' "$reply" ;; *) return 1 ;; esac
}
for ((i = 0; i < servers; i++)); do
  fetch "$(field "server-$i" metrics)" /metrics >"$work/server-$i.metrics" ||
    die "the metrics of server-$i cannot be read"
done
# One line a shard: server shard pushes push_bytes pulls pull_bytes cpu_seconds
loads=$(
  for ((i = 0; i < servers; i++)); do
    awk -v server="server-$i" -v shards="$shards" '
      match($1, /shard="[0-9]+"/) {
        shard = substr($1, RSTART + 7, RLENGTH - 8)
        name = $1; sub(/\{.*/, "", name)
        value[name, shard] += $2
      }
      END {
        for (s = 0; s < shards; s++)
          printf "%s %d %.0f %.0f %.0f %.0f %.3f\n", server, s,
            value["verbena_shard_pushes_total", s], value["verbena_shard_push_bytes_total", s],
            value["verbena_shard_pulls_total", s], value["verbena_shard_pull_bytes_total", s],
            value["verbena_shard_cpu_seconds_total", s]
      }' "$work/server-$i.metrics"
  done
)

if [ "$json" -eq 1 ]; then
  shard_rows=$(awk '
    { printf "%s{\"server\":\"%s\",\"shard\":%d,\"pushes\":%s,\"push_bytes\":%s,\"pulls\":%s," \
             "\"pull_bytes\":%s,\"cpu_seconds\":%s}", (NR > 1 ? "," : ""), $1, $2, $3, $4, $5, $6, $7
    }' <<<"$loads")
  # The trainer's own object, with two more members in front.
  trained=$(tr -d '\n' <"$work/train.json")
  case "$trained" in "{"*"}") ;; *) die "verbena-train printed no JSON object" ;; esac
  printf '{"count_models":%s,"shards":[%s],%s\n' "$counts" "$shard_rows" "${trained#\{}" >&3
  exit 0
fi

printf '\nLoad of each shard, from the metrics endpoints:\n'
awk '
  BEGIN {
    printf "  %-10s %5s %10s %10s %10s %10s %8s %6s\n",
      "server", "shard", "pushes", "MB in", "pulls", "MB out", "CPU s", "share"
  }
  { row[NR] = $0; all += $4 + $6 }
  END {
    for (i = 1; i <= NR; i++) {
      split(row[i], f, " ")
      printf "  %-10s %5d %10d %10.1f %10d %10.1f %8.2f %5.1f%%\n", f[1], f[2], f[3], f[4] / 1e6,
        f[5], f[6] / 1e6, f[7], (all > 0 ? 100 * (f[4] + f[6]) / all : 0)
    }
  }' <<<"$loads"
if [ "$format" = text ]; then
  number() { grep -oE "\"$1\" *: *[0-9.eE+-]+" "$work/counts.json" | head -n 1 | sed 's/.*: *//'; }
  printf '\nHeld-out bits per byte of models that count (Witten-Bell), on the same bytes:\n'
  for order in 0 1 2; do printf '  order %d  %.3f\n' "$order" "$(number "order_$order")"; done
fi
cat <<EOF

Where to go next:
  your own data        bash deploy/quickstart.sh --format libsvm --data train.txt --test test.txt
  a cluster that stays $verbenad --help, deploy/verbenad.service, deploy/verbena.sbatch
  look after one       $verbena --help: 'verbena status', 'verbena tables', 'verbena checkpoint save'
  your own trainer     client/include/verbena/client.h, and the example in README.md
  dashboards           deploy/prometheus.yml
EOF
