#!/usr/bin/env bash
# The example of the README, against a cluster of one process as the README starts it: ten steps
# that each take a tenth of the way from 0 to 1.
set -u
verbenad=$1 example=$2
here=$(mktemp -d)
trap 'kill "$daemon" 2>/dev/null; wait "$daemon"; rm -rf "$here"' EXIT
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
  printf 'status %d, output: %s\nlog of verbenad:\n' "$status" "$said"
  cat "$here/log"
  exit 1
fi
