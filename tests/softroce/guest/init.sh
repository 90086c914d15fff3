#!/bin/busybox sh
# shellcheck shell=dash
# The first process of a guest, run by busybox from the initramfs: loads modules, lays the copied
# programs over this machine's root and runs guest/main.sh in that. Options come by the kernel's
# command line: softroce.main=PATH, softroce.guest=NUMBER.
/bin/busybox --install -s
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev

while read -r module; do
  insmod "/modules/$module" || echo "guest: cannot load $module"
done </modules/order

option() { sed -n "s/.*softroce\.$1=\([^ ]*\).*/\1/p" /proc/cmdline; }

mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=loose,ro host /host
# Everything a test writes stays in memory.
mount -t tmpfs -o size=75% none /memory
mkdir -p /memory/upper /memory/work
mount -t overlay -o "lowerdir=/overlay:/host,upperdir=/memory/upper,workdir=/memory/work" none /root
mount -t proc none /root/proc
mount -t sysfs none /root/sys
mount -t devtmpfs none /root/dev
mkdir -p /root/dev/shm /root/dev/pts /root/dev/hugepages
mount -t tmpfs none /root/dev/shm
mount -t devpts none /root/dev/pts
mount -t hugetlbfs none /root/dev/hugepages
mount -t tmpfs none /root/run
# Shared with the machine that started this, and with the other guest: no caching.
mkdir -p /root/run/softroce
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=none share /root/run/softroce
cp /bin/busybox /root/run/busybox

# Not the terminal's process group: a test that reads from it must not stop.
GUEST=$(option guest) setsid chroot /root /bin/bash "$(option main)" </dev/null
echo "guest: ended with status $?"
sync
echo o >/proc/sysrq-trigger
sleep 60
