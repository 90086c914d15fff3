#!/bin/bash
# Rewrites the generated parts of docs/reference/*.md from the programs of a build folder:
#
#   docs/generate.sh [BUILD]           BUILD: build/release, with verbenad, verbena, verbena-train and
#                                      tests/structure/verbena_describe
#   docs/generate.sh --check [BUILD]   only prints the difference; exit status 1 if there is one
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mode="write"
[ "${1:-}" = --check ] && { mode="check"; shift; }
exec python3 "$here/generate.py" "$mode" "$here/reference" "${1:-$here/../build/release}"
