#!/usr/bin/env bash
# The example configuration is one that verbenad accepts. A commented-out line names an option, with its
# default value if it has one.
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

# An option and its text, which ends with "(default: V)" or "(default: V; allowed: ...)", on one line.
help=$("$verbenad" --help | awk '/^ *(-.,)?--/ { print text; text = $0; next } { $1 = $1; text = text " " $0 } END { print text }')
defaults=0
while read -r name value; do
  grep -q -- "--$name\b" <<<"$help" || { echo "verbenad has no option --$name"; exit 1; }
  default=$(sed -nE "s/^ *--$name .*\\(default: ([^;)]+)[;)].*/\1/p" <<<"$help")
  [ -n "$default" ] || continue
  defaults=$((defaults + 1))
  [ "$value" != true ] || default=${default/#1/true}
  [ "$value" = "$default" ] || {
    echo "deploy/verbenad.toml: $name is $value; the default, which the comment has to show, is $default"
    exit 1
  }
done < <(sed -nE 's/^# ([a-z-]+) = "?([^"]*)"?$/\1 \2/p' "$root/deploy/verbenad.toml")
[ "$defaults" -ge 10 ] || { echo "only $defaults defaults were found; has --help another form?"; exit 1; }
