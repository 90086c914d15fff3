#!/usr/bin/env bash
# For test cases in bash, sourced by the lib.sh of tests/softroce and tests/hosts: messages of a case,
# and its assertions.

fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
note() { printf -- '-- %s\n' "$*"; }

# assert MESSAGE COMMAND...: the command succeeds.
assert() {
  local message=$1
  shift
  "$@" || fail "$message (failed: $*)"
}
# assert_at_least NAME VALUE LEAST, assert_at_most NAME VALUE MOST, assert_equal NAME VALUE EXPECTED:
# integers (assert_equal: any text).
assert_at_least() { [ "$2" -ge "$3" ] || fail "$1 is $2; expected at least $3"; }
assert_at_most() { [ "$2" -le "$3" ] || fail "$1 is $2; expected at most $3"; }
assert_equal() { [ "$2" = "$3" ] || fail "$1 is '$2'; expected '$3'"; }
# assert_says FILE TEXT: the file contains the text.
assert_says() { grep -qF -- "$2" "$1" || { cat "$1"; fail "$1 does not say '$2'"; }; }

# wait_for SECONDS COMMAND...: until the command succeeds. Fails the case when it does not.
wait_for() {
  local seconds=$1 deadline
  shift
  deadline=$((SECONDS + seconds + 1))
  until "$@"; do
    [ "$SECONDS" -lt "$deadline" ] || fail "after $seconds s it still does not hold: $*"
    sleep 0.05
  done
}
