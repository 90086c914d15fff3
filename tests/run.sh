#!/usr/bin/env bash
# Builds and tests: for every change the release build, with --ci and --nightly also under sanitizers.
# Installs missing packages. `--help` lists the options.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
# shellcheck source=deploy/packages.sh
. deploy/packages.sh

usage() {
  cat <<'EOF'
usage: bash tests/run.sh [--ci | --nightly] [--only PART[,PART]] [--jobs N] [-- CTEST-ARGUMENTS]

Without --ci and --nightly: the release build and the tests that every change needs.

  --ci          also the tests with the label "ci" (emulated machines), and two more parts: what parses,
                allocates or crosses threads under AddressSanitizer and UBSan, and what lies below gRPC
                and has threads under ThreadSanitizer
  --nightly     also the tests with the labels "nightly" and "soak", all cases of tests/hosts,
                tests/softroce and tests/start, more simulator seeds (VERBENA_NIGHTLY=1); the release
                build compiles each source and header by itself, and the benchmarks
  --only PART   release, asan, tsan: only these parts
  --jobs N      compile jobs (default: the number of cores)
  -- ...        handed to every ctest, such as -R shm; the check of skipped tests is then left out

VERBENA_TEST_DATA names a folder with the a9a data set; without it the tests that need it are
skipped, by name. The closing lines are ctest's summary of the last part; the exit status is 0 only
when every part passed, the skipped tests are those of tests/expected_skips.txt, and nothing was
left running.
EOF
}

tier=change
parts=""
jobs=$(nproc)
# One test that causes faults or watches the clock, two that mostly wait, and two that compute in the idle
# rest (cmake/VerbenaModules.cmake).
tests_at_once=$((jobs < 2 ? 1 : 5))
ctest_extra=()
while [ "$#" -gt 0 ]; do
  case "$1" in
    --only) [ "$#" -ge 2 ] || { usage >&2; exit 2; }; parts=${2//,/ }; shift ;;
    --ci|--nightly) tier=${1#--} ;;
    --jobs) [ "$#" -ge 2 ] || { usage >&2; exit 2; }; jobs=$2; shift ;;
    --help|-h) usage; exit 0 ;;
    --) shift; ctest_extra=("$@"); break ;;
    *) printf 'tests/run.sh: unknown option "%s"\n' "$1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
if [ -z "$parts" ]; then
  parts=release
  [ "$tier" = change ] || parts="release asan tsan"
fi
for part in $parts; do
  case "$part" in
    release|asan|tsan) ;;
    *) printf 'tests/run.sh: unknown part "%s"; allowed: release, asan, tsan\n' "$part" >&2; exit 2 ;;
  esac
done
[ "$tier" = nightly ] && export VERBENA_NIGHTLY=1

# A report ends the program that caused it. Half of the time of tests with many small allocations would go
# into stacks of 30 frames for each, into 256 MiB of freed memory that is kept apart, and into returning
# memory to the kernel.
asan_options=abort_on_error=0:detect_leaks=1:strict_string_checks=1
asan_options+=:malloc_context_size=8:quarantine_size_mb=64:allocator_release_to_os_interval_ms=-1
export ASAN_OPTIONS="$asan_options${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export LSAN_OPTIONS="suppressions=$root/tests/lsan.supp:print_suppressions=0${LSAN_OPTIONS:+:$LSAN_OPTIONS}"
export UBSAN_OPTIONS="print_stacktrace=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"
export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1${TSAN_OPTIONS:+:$TSAN_OPTIONS}"

timings=()
failures=()
now() { date +%s; }
took() {  # NAME START
  timings+=("$(printf '%-16s %5.1f min' "$1" "$(awk -v s="$2" -v e="$(now)" 'BEGIN { print (e - s) / 60 }')")")
}
say() { printf '\n== %s\n' "$*"; }
wants() { case " $parts " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

# ---- leftovers -----------------------------------------------------------------------------------
# Processes whose program is one of ours: /proc/PID/exe survives a renamed argv[0].
our_processes() {
  local link exe
  for link in /proc/[0-9]*/exe; do
    exe=$(readlink "$link" 2>/dev/null) || continue
    case "$exe" in
      "$root"/build/release/*|"$root"/build/asan/*|"$root"/build/tsan/*)
        printf '%s %s\n' "$(cut -d/ -f3 <<<"$link")" "$exe" ;;
    esac
  done | sort
}
our_shm() { find /dev/shm -mindepth 1 -maxdepth 1 -iname '*verbena*' 2>/dev/null | sort; }
processes_before=$(our_processes)
shm_before=$(our_shm)

check_leftovers() {
  local left
  left=$(comm -13 <(printf '%s\n' "$processes_before") <(our_processes))
  [ -n "$left" ] && { printf 'left running by the tests:\n%s\n' "$left"; failures+=("processes left running"); }
  left=$(comm -13 <(printf '%s\n' "$shm_before") <(our_shm))
  [ -n "$left" ] && { printf 'left in /dev/shm by the tests:\n%s\n' "$left"; failures+=("files left in /dev/shm"); }
}

# ---- which tests were skipped --------------------------------------------------------------------
expected_skips() {  # PART
  local part name condition
  while read -r part name condition; do
    case "$part" in ''|'#'*) continue ;; esac
    [ "$part" = '*' ] || [ "$part" = "$1" ] || continue
    case "$condition" in
      always) printf '%s\n' "$name" ;;
      unset:*) [ -n "$(printenv "${condition#unset:}")" ] || printf '%s\n' "$name" ;;
      no-namespaces) unshare --net true 2>/dev/null || printf '%s\n' "$name" ;;
      no-mounts) unshare --mount sh -c 'mount -t tmpfs none /mnt' 2>/dev/null || printf '%s\n' "$name" ;;
      no-history) bash tests/faults/upgrade_from.sh --find >/dev/null || printf '%s\n' "$name" ;;
      no-module:*) /usr/bin/python3 -c "import ${condition#no-module:}" 2>/dev/null || printf '%s\n' "$name" ;;
      missing:*) command -v "${condition#missing:}" >/dev/null || printf '%s\n' "$name" ;;
      *) printf 'tests/expected_skips.txt: unknown condition "%s"\n' "$condition" >&2 ;;
    esac
  done < tests/expected_skips.txt | sort -u
}
actual_skips() {  # LOG of ctest
  sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .*\*\*\*(Skipped|Not Run).*/\1/p' "$1" | sort -u
}
check_skips() {  # PART LOG
  [ "${#ctest_extra[@]}" -eq 0 ] || return 0
  local unexpected ran
  # A test that this part does not have at all cannot be skipped in it.
  unexpected=$(comm -13 <(expected_skips "$1") <(actual_skips "$2"))
  ran=$(comm -23 <(expected_skips "$1") <(actual_skips "$2") | while read -r name; do
    grep -qE "Test +#[0-9]+: $name " "$2" && printf '%s\n' "$name"; done)
  if [ -n "$unexpected" ]; then
    printf 'skipped in %s, though tests/expected_skips.txt does not expect it:\n%s\n' "$1" "$unexpected"
    failures+=("$1: unexpected skips")
  fi
  if [ -n "$ran" ]; then
    printf 'ran in %s, though tests/expected_skips.txt says it is skipped here:\n%s\n' "$1" "$ran"
    failures+=("$1: expected skips that ran")
  fi
}

# ---- build and run -------------------------------------------------------------------------------
build() {  # PART
  local start; start=$(now)
  say "build $1"
  local unity=ON
  [ "$1" = release ] && [ "$tier" = nightly ] && unity=OFF
  cmake --preset "$1" -D VERBENA_UNITY="$unity" -D VERBENA_TIER="$tier" >"build/$1-configure.log" 2>&1 || {
    tail -n 40 "build/$1-configure.log"; failures+=("$1: configure"); return 1; }
  sed -n 's/^-- \(Python package: .*\)/\1/p' "build/$1-configure.log"
  # A sanitizer's build has only the targets that its tests run.
  local target=all
  [ "$1" = release ] || [ "$tier" = nightly ] || target=verbena_tests
  # On a terminal ninja redraws one line; elsewhere only failures are worth the space.
  local quiet=(); [ -t 1 ] || quiet=(--quiet)
  ninja -C "build/$1" -j "$jobs" "${quiet[@]}" "$target" || { failures+=("$1: build"); return 1; }
  took "build $1" "$start"
}

# Copies lines, each at once; with a file name, ctest's closing summary goes there.
split_summary() {  # [FILE]
  local line held=0
  while IFS= read -r line; do
    case "$line" in *"% tests passed, "*) held=1 ;; esac
    if [ "$held" -eq 1 ] && [ -n "$1" ]; then
      printf '%s\n' "$line" >>"$1"
    else
      printf '%s\n' "$line"
    fi
  done
}

# Runs ctest. With a file name as second argument the closing summary goes there instead of to the
# terminal, so that it can be printed after the checks.
run_ctest() {  # PART [HOLD]
  local start status log="build/$1-ctest.log" hold=${2:-}
  local select=(--output-on-failure --no-tests=error --parallel "$tests_at_once"
    --resource-spec-file "$root/tests/support/idle_processors.json")
  case "$tier" in
    change) select+=(--label-exclude '^(ci|nightly|soak)$') ;;
    ci) select+=(--label-exclude '^(nightly|soak)$') ;;
  esac
  # gcc 12's ThreadSanitizer cannot map its shadow where the kernel randomises more than 28 bits.
  local launcher=()
  [ "$1" = tsan ] && setarch -R true 2>/dev/null && launcher=(setarch -R)
  start=$(now)
  say "test $1"
  "${launcher[@]}" ctest --test-dir "build/$1" "${select[@]}" "${ctest_extra[@]}" 2>&1 | tee "$log" |
    split_summary "$hold"
  status=${PIPESTATUS[0]}
  took "test $1" "$start"
  [ "$status" -eq 0 ] || failures+=("$1: ctest")
  check_skips "$1" "$log"
}

mkdir -p build
began=$(now)
ensure_packages build test || exit 1
# All compile errors show before the first test runs; the release build first.
built=""
for part in release asan tsan; do
  wants "$part" && build "$part" && built="$part $built"
done
# The release part is tested last: it has every test, so the closing summary covers all of them.
order=$built
last=${order% }
last=${last##* }
hold=$(mktemp)
trap 'rm -f "$hold"' EXIT
for part in $order; do [ "$part" = "$last" ] || run_ctest "$part"; done
[ -n "$last" ] && run_ctest "$last" "$hold"
check_leftovers

say "minutes"
printf '%s\n' "${timings[@]}"
took all "$began"
printf '%s\n' "${timings[-1]}"
if [ "${#failures[@]}" -gt 0 ]; then
  cat "$hold"
  printf '\nFAILED:\n'
  printf '  %s\n' "${failures[@]}"
  exit 1
fi
cat "$hold"
