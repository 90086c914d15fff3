#!/usr/bin/env bash
# For the runners of tests/softroce and tests/hosts: the header of a case file, in lines such as
# "# limit: 60". Reads $here/cases.

header() {  # CASE FIELD DEFAULT
  local value
  # shellcheck disable=SC2154 # the runner's folder
  value=$(sed -n "s/^# $2: *//p" "$here/cases/$1.sh" | head -n 1)
  printf '%s\n' "${value:-$3}"
}

# Whether a run of all cases has this one: with QUICK 1 those marked "# when: nightly" are left to
# tests/run.sh --nightly.
wanted() {  # CASE QUICK
  [ "$2" -eq 0 ] || [ "${VERBENA_NIGHTLY:-0}" = 1 ] || [ "$(header "$1" when always)" != nightly ]
}
