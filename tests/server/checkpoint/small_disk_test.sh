#!/usr/bin/env bash
# small_disk_test.sh PROGRAM: its tests of a small and of a read-only disk, on a tmpfs of 1 MiB that
# only this process and its children see. 77: this user may not mount.
set -eu
if [ "${2:-}" != inside ]; then
  unshare --mount sh -c 'mount -t tmpfs none /mnt' 2>/dev/null || { echo 'skipped: cannot mount'; exit 77; }
  exec unshare --mount bash "$0" "$1" inside
fi
directory=$(mktemp -d)
trap 'umount "$directory"; rmdir "$directory"' EXIT
mount -t tmpfs -o size=1m none "$directory"
export VERBENA_SMALL_DISK=$directory
"$1" --use-colour no '[.small-disk]'
mount -o remount,ro "$directory"
"$1" --use-colour no '[.read-only-disk]'
