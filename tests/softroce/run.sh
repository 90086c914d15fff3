#!/usr/bin/env bash
# Runs tests on a real RDMA stack without a NIC: boots Debian's kernel in qemu, with soft-RoCE
# (rdma_rxe), this machine's root file system (read-only, changes in memory) and the programs that
# were built here. `--help` lists the options, README.md how to add a case.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source_folder=$(cd "$here/../.." && pwd)

usage() {
  cat <<'USAGE'
usage: bash tests/softroce/run.sh [OPTIONS] [CASE...]

Boots one guest (or two on one wire) and runs the cases in it: by default all for that many guests.

  --guests N     1 or 2 (default 1)
  --build DIR    where the programs were built (default build/release)
  --replicas N   1 or 2: copies of a partition (default 1), but in the cases faults and failover
  --quick        without the cases marked "when: nightly", unless VERBENA_NIGHTLY is 1 (tests/run.sh --nightly)
  --strict       a case whose programs were not built fails (otherwise: skipped, unless named)
  --verbose      show the output of cases while they run (otherwise: of those that fail)
  --list         show the cases and end
  --keep         keep the folder with the output of cases and of the guests' consoles, and name it
  --shell CMD    run this command instead of cases; with two guests in both, GUEST tells which
  --copy FILE    with --shell: a program it uses; it is copied into the guest's memory (repeatable)
  --limit N      with --shell: seconds it may take (default 300)

Prints a line a case. The exit status is the number of cases that failed (with --shell: that of the
command), or 77 when this machine cannot run it, with the reason.
SOFTROCE_ACCELERATOR (kvm, tcg), SOFTROCE_MEMORY (MiB a guest) and SOFTROCE_CPUS override choices.
USAGE
}
say() { printf 'softroce: %s\n' "$*" >&2; }
wrong() { say "$* (see --help)"; exit 2; }

guests=1 replicas=1 build=$source_folder/build/release
quick=0 strict=0 verbose=0 list=0 keep=0 shell="" shell_limit=300
copies=() named=()
while [ "$#" -gt 0 ]; do
  case "$1" in
    --guests|--replicas|--build|--shell|--copy|--limit) [ "$#" -ge 2 ] || wrong "$1 wants a value" ;;
  esac
  case "$1" in
    --guests) guests=$2; shift ;;
    --replicas) replicas=$2; shift ;;
    --build) build=$2; shift ;;
    --shell) shell=$2; shift ;;
    --copy) copies+=("$2"); shift ;;
    --limit) shell_limit=$2; shift ;;
    --quick) quick=1 ;;
    --strict) strict=1 ;;
    --verbose) verbose=1 ;;
    --list) list=1 ;;
    --keep) keep=1 ;;
    --help|-h) usage; exit 0 ;;
    -*) wrong "unknown option '$1'" ;;
    *) named+=("$1") ;;
  esac
  shift
done
case "$guests" in 1|2) ;; *) wrong "--guests is '$guests'; allowed: 1, 2" ;; esac
case "$replicas" in 1|2) ;; *) wrong "--replicas is '$replicas'; allowed: 1, 2" ;; esac
[[ $shell_limit =~ ^[1-9][0-9]{0,4}$ ]] || wrong "--limit is '$shell_limit'; wanted: seconds"
if [ -n "$shell" ] && [ "${#named[@]}" -gt 0 ]; then wrong "--shell excludes cases"; fi
if [ -d "$build" ]; then build=$(realpath "$build"); fi

# ---- which cases ---------------------------------------------------------------------------------
# shellcheck source=tests/support/case_header.sh
. "$here/../support/case_header.sh"
if [ "$list" -eq 1 ]; then
  for file in "$here"/cases/*.sh; do
    name=$(basename "$file" .sh)
    printf '%-16s guests %s, limit %4s s, %-6s needs %s\n' "$name" "$(header "$name" guests 1)" \
      "$(header "$name" limit 60)" "$(header "$name" when always)," "$(header "$name" needs nothing)"
  done
  exit 0
fi
cases=() programs=()
failures=0
if [ -z "$shell" ] && [ "${#named[@]}" -eq 0 ]; then
  for file in "$here"/cases/*.sh; do
    name=$(basename "$file" .sh)
    [ "$(header "$name" guests 1)" -eq "$guests" ] && wanted "$name" "$quick" && cases+=("$name")
  done
fi
for name in "${named[@]}"; do
  [ -f "$here/cases/$name.sh" ] || wrong "there is no case '$name'; --list shows them"
  [ "$(header "$name" guests 1)" -eq "$guests" ] ||
    wrong "case '$name' wants --guests $(header "$name" guests 1)"
  cases+=("$name")
done
runnable=()
for name in "${cases[@]}"; do
  missing=""
  for program in $(header "$name" needs ""); do
    if [ -x "$build/$program" ]; then programs+=("$build/$program"); else missing+=" $program"; fi
  done
  if [ -z "$missing" ]; then
    runnable+=("$name")
  elif [ "$strict" -eq 1 ] || [ "${#named[@]}" -gt 0 ]; then
    printf 'FAILED  %-24s not built in %s:%s\n' "$name" "$build" "$missing"
    failures=$((failures + 1))
  else
    printf 'skipped %-24s not built in %s:%s\n' "$name" "$build" "$missing"
  fi
done
for file in "${copies[@]}"; do
  [ -f "$file" ] || wrong "--copy: there is no '$file'"
  programs+=("$(realpath "$file")")
done
if [ -z "$shell" ] && [ "${#runnable[@]}" -eq 0 ]; then exit "$failures"; fi

# ---- requirements of this machine ----------------------------------------------------------------
# shellcheck source=deploy/packages.sh
. "$source_folder/deploy/packages.sh"
# shellcheck source=tests/softroce/host/kernel.sh
. "$here/host/kernel.sh"
# shellcheck source=tests/softroce/host/image.sh
. "$here/host/image.sh"
if [ "$(uname -m)" != x86_64 ]; then say "skipped: it is made for x86_64 alone"; exit 77; fi
if ! ensure_packages softroce; then say "skipped: packages are missing"; exit 77; fi
for program in qemu-system-x86_64 busybox cpio modprobe rdma; do
  command -v "$program" >/dev/null || PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null ||
    { say "skipped: there is no $program"; exit 77; }
done
PATH=$PATH:/usr/sbin:/sbin

# ---- everything started here is ended here -------------------------------------------------------
work=$(mktemp -d "${TMPDIR:-/tmp}/verbena-softroce.XXXXXXXX")
pids=()
# shellcheck disable=SC2317  # called by the trap
finish() {
  trap '' INT TERM HUP
  local pid
  for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  if [ "$keep" -eq 1 ]; then
    rm -f "$work/image"
    say "output is kept in $work"
  else
    rm -rf "$work"
  fi
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

kernel_dir=""
kernel_find || exit
accelerator=$(kernel_accelerator)

# ---- the plan, and boot --------------------------------------------------------------------------
share=$work/share
mkdir -p "$share"
budget=120  # seconds for booting, and for the work around the cases
plan() {  # NAME LIMIT FILE
  printf '%s %s %s\n' "$@" >>"$share/plan"
  budget=$((budget + $2 + 20))
}
for name in "${runnable[@]}"; do
  plan "$name" "$(header "$name" limit 60)" "$here/cases/$name.sh"
done
if [ -n "$shell" ]; then
  # shellcheck disable=SC2016  # $SOFTROCE is the guest's
  printf '. "$SOFTROCE/lib.sh"; cd "$SOURCE"; set +eu\n%s\n' "$shell" >"$share/shell.sh"
  plan shell "$shell_limit" /run/softroce/shell.sh
  verbose=1
fi
{
  printf 'export %s=%q\n' SOFTROCE "$here" SOURCE "$source_folder" BUILD "$build" DEVICE rxe0 \
    REPLICAS "$replicas"
  # A data set outside the tree, as other tests find it.
  [ -z "${VERBENA_TEST_DATA:-}" ] || printf 'export VERBENA_TEST_DATA=%q\n' "$VERBENA_TEST_DATA"
} >"$share/environment"
image_make "$work/image" "$kernel_dir" "$here/guest/init.sh" "${programs[@]}"

wire() {  # NAME GUEST MAC: one end; guest 1 has the end that listens
  local server=off
  [ "$2" -ne 1 ] || server=on
  # host_mtu: required for an InfiniBand MTU of 4096.
  printf '%s\n' -netdev "stream,id=$1,server=$server,addr.type=unix,addr.path=$work/$1" \
    -device "virtio-net-pci,netdev=$1,mac=$3,host_mtu=4200,romfile="
}
boot() {  # GUEST (0: alone)
  local guest=$1 network=(-nic none) emulator=kvm clock=""
  if [ "$accelerator" = tcg ]; then
    emulator=tcg,thread=multi
    # A kernel that starts on a busy machine mistakes the rate of the processor's clock, by two and
    # more: its seconds are wrong ever after.
    clock="clocksource=hpet tsc=unstable"
  fi
  if [ "$guest" -ne 0 ]; then
    mapfile -t network < <(wire data "$guest" "52:54:00:00:00:0$guest"
                           wire control "$guest" "52:54:00:00:01:0$guest")
  fi
  local options="softroce.guest=$guest softroce.main=$here/guest/main.sh"
  # Nothing outlives this script, not even when it is killed outright.
  setpriv --pdeathsig KILL timeout -k 5 "$budget" setpriv --pdeathsig KILL \
    qemu-system-x86_64 -accel "$emulator" -cpu max -m "${SOFTROCE_MEMORY:-3072}" \
    -smp "${SOFTROCE_CPUS:-2}" -nographic -no-reboot \
    -kernel "$kernel_dir/vmlinuz" -initrd "$work/image" \
    -append "console=ttyS0 quiet panic=-1 $clock hugepages=64 $options" \
    "${network[@]}" \
    -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
    -virtfs "local,path=$share,mount_tag=share,security_model=none" \
    </dev/null >"$work/console.$guest" 2>&1 &
  pids+=("$!")
}
if [ "$guests" -eq 1 ]; then
  members=(0)
  boot 0
else
  members=(1 2)
  boot 1
  for _ in {1..100}; do
    if [ -S "$work/data" ] && [ -S "$work/control" ]; then break; fi
    sleep 0.1
  done
  boot 2
fi

# ---- results -------------------------------------------------------------------------------------
alive() {  # all guests run
  local pid
  for pid in "${pids[@]}"; do kill -0 "$pid" 2>/dev/null || return 1; done
}
declare -A shown=()
show_new() {  # CASE: the part of its logs that has not been shown
  local guest file size
  for guest in "${members[@]}"; do
    file=$share/$1/log.$guest
    [ -f "$file" ] || continue
    size=$(stat -c %s "$file")
    [ "$size" -gt "${shown[$file]:-0}" ] || continue
    if [ "$guests" -eq 1 ]; then
      tail -c "+$((${shown[$file]:-0} + 1))" "$file" | head -c "$((size - ${shown[$file]:-0}))"
    else
      tail -c "+$((${shown[$file]:-0} + 1))" "$file" | head -c "$((size - ${shown[$file]:-0}))" |
        sed "s/^/$guest| /"
    fi
    shown[$file]=$size
  done
}
ended() {  # CASE: on all guests
  local guest
  for guest in "${members[@]}"; do [ -f "$share/$1/result.$guest" ] || return 1; done
}
report() {  # CASE: prints its line; false when it failed
  local guest word seconds why status=ok longest=0 reason=""
  for guest in "${members[@]}"; do
    word="" seconds=0 why=""
    [ ! -f "$share/$1/result.$guest" ] || read -r word seconds why <"$share/$1/result.$guest"
    [ -n "$word" ] || why="the guest ended"
    if [ "$word" != ok ]; then
      status=FAILED
      [ "$guests" -eq 1 ] || why="guest $guest: $why"
      reason+="${reason:+; }$why"
    fi
    longest=$(printf '%s\n' "$longest" "$seconds" | sort -n | tail -n 1)
  done
  if [ "$status" = FAILED ]; then show_new "$1"; fi
  printf '%-7s %-24s %6s s%s\n' "$status" "$1" "$longest" "${reason:+  $reason}"
  [ "$status" = ok ]
}
status=0
gone=0
while read -r name _ _; do
  if [ "$gone" -eq 1 ]; then
    printf 'FAILED  %-24s not run\n' "$name"
    failures=$((failures + 1))
    continue
  fi
  until ended "$name"; do
    # Once more after the last guest ended: it may just have written it.
    if ! alive; then sleep 0.2; ended "$name" || break; fi
    [ "$verbose" -eq 0 ] || show_new "$name"
    sleep 0.1
  done
  [ "$verbose" -eq 0 ] || show_new "$name"
  if [ -n "$shell" ]; then
    for guest in "${members[@]}"; do
      word="" why="the guest ended"
      [ ! -f "$share/$name/result.$guest" ] || read -r word _ why <"$share/$name/result.$guest"
      case "$word $why" in
        "ok "*) ;;
        "FAILED exit status "*) status=${why##* } ;;
        *) say "guest $guest: $why"; status=124 ;;
      esac
    done
  elif ! report "$name"; then
    failures=$((failures + 1))
  fi
  if ! ended "$name"; then
    for guest in "${members[@]}"; do
      say "the end of the console of guest $guest:"
      tail -n 30 "$work/console.$guest" | tr -d '\r' >&2
    done
    gone=1
  fi
done <"$share/plan"
if [ -n "$shell" ]; then exit "$status"; fi
exit "$((failures > 70 ? 70 : failures))"
