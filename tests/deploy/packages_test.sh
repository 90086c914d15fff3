#!/usr/bin/env bash
# packages.sh: finds missing packages, and without root names exactly that in one command line.
set -eu
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
# A dpkg-query that knows all but two, and an id that is not root.
cat >"$here/dpkg-query" <<'EOF'
#!/bin/sh
for name; do :; done
case "$name" in catch2|ccache) echo 'un '; exit 1 ;; *) echo 'ii ' ;; esac
EOF
printf '#!/bin/sh\necho 1000\n' >"$here/id"
chmod +x "$here/dpkg-query" "$here/id"
status=0
said=$(PATH=$here:$PATH bash -c '. "$1/deploy/packages.sh"; ensure_packages build' _ "$1" 2>&1) || status=$?
fail() { echo "$*"; echo "$said"; exit 1; }
[ "$status" -eq 1 ] || fail "expected exit status 1, got $status"
line=$(grep 'sudo apt-get install' <<<"$said") || fail "no command line"
[ "${line##*recommends }" = "ccache catch2" ] || fail "not exactly the missing ones"
# With nothing missing it prints nothing.
printf '#!/bin/sh\necho "ii "\n' >"$here/dpkg-query"
said=$(PATH=$here:$PATH bash -c '. "$1/deploy/packages.sh"; ensure_packages build test' _ "$1" 2>&1) ||
  fail "failed with nothing missing"
[ -z "$said" ] || fail "expected silence"
