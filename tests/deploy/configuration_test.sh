#!/usr/bin/env bash
# The example configuration is one that verbenad accepts, and each commented-out line in it too.
set -eu
root=$1 verbenad=$2
here=$(mktemp -d)
trap 'rm -rf "$here"; [ -z "${daemon:-}" ] || kill -KILL "$daemon" 2>/dev/null || true' EXIT

# With ports and folders of this test's own, it runs.
sed -e 's|^listen = .*|listen = "127.0.0.1:0"|' -e 's|^metrics = .*|metrics = "127.0.0.1:0"|' \
  -e "s|^state = .*|state = \"$here/state\"|" "$root/deploy/verbenad.toml" >"$here/verbenad.toml"
"$verbenad" --config "$here/verbenad.toml" --ready-file "$here/ready" >"$here/log" 2>&1 &
daemon=$!
for ((i = 0; i < 300; i++)); do
  [ -s "$here/ready" ] && break
  kill -0 "$daemon" 2>/dev/null || { echo "verbenad ended:"; cat "$here/log"; exit 1; }
  sleep 0.1
done
[ -s "$here/ready" ] || { echo "verbenad is not ready after 30 s:"; cat "$here/log"; exit 1; }
kill -TERM "$daemon"
status=0
wait "$daemon" || status=$?
daemon=""
[ "$status" -eq 0 ] || { echo "verbenad ended with $status on SIGTERM:"; cat "$here/log"; exit 1; }

# Every name that the file mentions in a comment is an option too.
help=$("$verbenad" --help)
while read -r name; do
  grep -q -- "--$name\b" <<<"$help" || { echo "verbenad has no option --$name"; exit 1; }
done < <(sed -nE 's/^# ([a-z-]+) = .*/\1/p' "$root/deploy/verbenad.toml")
