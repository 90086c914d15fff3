#!/usr/bin/env bash
# The examples of README.md and docs/client-guide.md, each against a cluster of one process as the README starts it: ten
# steps that each take a tenth of the way from 0 to 1.
set -u
verbenad=$1
shift
here=$(mktemp -d)
daemon=""
finish() {
  [ -z "$daemon" ] || kill "$daemon" 2>/dev/null
  wait
  rm -rf "$here"
}
trap finish EXIT
for example in "$@"; do
  rm -f "$here/ready"
  "$verbenad" --coordinator --listen 127.0.0.1:0 --ready-file "$here/ready" >"$here/log" 2>&1 &
  daemon=$!
  for ((i = 0; i < 300; i++)); do
    [ -s "$here/ready" ] && break
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.1
  done
  address=$(sed -nE 's/.*"address" *: *"([^"]+)".*/\1/p' "$here/ready")
  said=$("$example" "$address" 2>&1)
  status=$?
  if [ "$status" -ne 0 ] || [ "$said" != "weights[0] = 0.6513 after 10 steps" ]; then
    printf '%s: status %d, output: %s\nlog of verbenad:\n' "$example" "$status" "$said"
    cat "$here/log"
    exit 1
  fi
  kill "$daemon"
  wait "$daemon"
  daemon=""
done
