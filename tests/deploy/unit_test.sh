#!/usr/bin/env bash
# The systemd unit is one that systemd accepts without a warning.
set -eu
if ! command -v systemd-analyze >/dev/null; then echo "skipped: no systemd-analyze"; exit 77; fi
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
# verify wants the program to exist: any that does stands in for the installed one.
sed 's|/usr/local/bin/verbenad|/bin/true|' "$1/deploy/verbenad.service" >"$copy/verbenad.service"
said=$(systemd-analyze verify --man=no "$copy/verbenad.service" 2>&1) || { echo "$said"; exit 1; }
# Unknown keys are only a warning to systemd; to us they are a mistake.
if [ -n "$said" ]; then echo "$said"; exit 1; fi
# And the check does see a mistake.
echo 'Hardenning=yes' | sed -i '/^\[Service\]/r /dev/stdin' "$copy/verbenad.service"
said=$(systemd-analyze verify --man=no "$copy/verbenad.service" 2>&1) || true
case "$said" in *Hardenning*) ;; *) echo "a planted unknown key was not reported"; exit 1 ;; esac
