#!/usr/bin/env bash
# usage: prefetch_test.sh ROOT COMPILER
# Prefetches of the shard reach the processor: a compiler may find a function of them alone to be
# without effect and drop its calls (shard/kernel/prefetch.h), which only shows in the speed.
set -euo pipefail
cd "$1"
compiler=$2

bare=$(grep -rn '__builtin_prefetch' --include='*.h' --include='*.cc' shard bench |
       grep -v '^shard/kernel/prefetch.h:' || true)
if [ -n "$bare" ]; then
  printf 'use shard/kernel/prefetch.h, from which no call is dropped:\n%s\n' "$bare" >&2
  exit 1
fi

# Functions of prefetches alone, as the rows' are: three prefetches.
assembly=$("$compiler" -std=c++20 -O2 -I. -x c++ -S -o - - <<'SOURCE'
#include "shard/kernel/prefetch.h"
struct Rows {
  const char* at;
  unsigned bytes;
  void Index(unsigned i) const { verbena::shard::PrefetchToRead(at + i); }
  void Row(unsigned i) const {
    for (unsigned b = 0; b < bytes; b += 64) verbena::shard::PrefetchToWrite(at + i + b);
    verbena::shard::PrefetchToRead(at + i + bytes - 1);
  }
};
void LookAhead(const Rows& rows, const unsigned* which, int n) {
  for (int i = 0; i < n; ++i) {
    rows.Index(which[i]);
    if (which[i] < rows.bytes) rows.Row(which[i]);
  }
}
SOURCE
)
found=$(grep -cE '^[[:space:]]*(prefetch|prfm)' <<<"$assembly" || true)
if [ "$found" -lt 3 ]; then
  printf '%s compiles 3 prefetches of shard/kernel/prefetch.h to %s\n' "$compiler" "$found" >&2
  exit 1
fi
