#!/usr/bin/env bash
# Every source is as clang-format 14 (Debian 12's) writes it. Another version formats differently,
# so with none of that version the test is skipped (exit 77).
set -eu
cd "$1"
program=""
for candidate in clang-format-14 clang-format; do
  if command -v "$candidate" >/dev/null && "$candidate" --version | grep -q 'version 14\.'; then
    program=$candidate
    break
  fi
done
if [ -z "$program" ]; then
  echo "skipped: no clang-format of version 14"
  exit 77
fi
find proto rdma shard server client worker tests bench \
  \( -name '*.h' -o -name '*.cc' -o -name '*.c' -o -name '*.cu' \) -print0 |
  xargs -0 "$program" --dry-run -Werror
