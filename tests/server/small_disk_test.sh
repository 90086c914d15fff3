#!/usr/bin/env bash
# small_disk_test.sh SIZE PROGRAM read-only|none: its tests of a small disk, then, with read-only,
# of one that cannot be written to, on a tmpfs of that size (1m, for example) that only this process and its
# children see. 77: this user may not mount.
set -eu
if [ "${*: -1}" != inside ]; then
  unshare --mount sh -c 'mount -t tmpfs none /mnt' 2>/dev/null || { echo 'skipped: cannot mount'; exit 77; }
  exec unshare --mount bash "$0" "$@" inside
fi
directory=$(mktemp -d)
trap 'umount "$directory"; rmdir "$directory"' EXIT
mount -t tmpfs -o size="$1" none "$directory"
export VERBENA_SMALL_DISK=$directory
"$2" --use-colour no '[.small-disk]'
if [ "$3" = read-only ]; then
  mount -o remount,ro "$directory"
  "$2" --use-colour no '[.read-only-disk]'
fi
