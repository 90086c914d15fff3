#!/usr/bin/env bash
# The kernel that the guests boot: Debian's own package, downloaded and unpacked, never installed.
# Sourced by run.sh.

# The last five are not needed for RDMA: tests impair the wire with them. modprobe's list shows no
# need of rdma_rxe for crc32_generic: it asks the kernel for a "crc32" hash when a device is made,
# and `rdma link add` fails with a bare "failed to add" without one.
softroce_modules=(
  virtio_pci virtio_net 9p 9pnet_virtio overlay
  crc32_generic rdma_rxe ib_uverbs rdma_ucm
  veth sch_netem sch_prio cls_u32 dummy
)

softroce_cache=${XDG_CACHE_HOME:-$HOME/.cache}/verbena-softroce

# kernel_find: sets kernel_dir to a folder with vmlinuz, modules/*.ko and modules/order (the order
# to load them in). Returns 77 when there is none and none can be had.
kernel_find() {
  local key
  # Another list of modules is another folder.
  key=$(printf '%s\n' layout-1 "$(uname -m)" "${softroce_modules[@]}" | cksum | cut -d' ' -f1)
  kernel_dir=$softroce_cache/kernel-$key
  mkdir -p "$softroce_cache"
  # Complete or absent: it gets its name when it is whole. Runs that start at once take turns.
  [ -e "$kernel_dir" ] && return 0
  (
    flock 9
    [ -e "$kernel_dir" ] && exit 0
    rm -rf "$softroce_cache"/partial.*  # of runs that were killed; only a holder of the lock writes
    partial=$(mktemp -d "$softroce_cache/partial.XXXXXX")
    trap 'rm -rf "$partial"' EXIT
    kernel_make "$partial" || exit
    mv -T "$partial/done" "$kernel_dir"
  ) 9>"$softroce_cache/lock"
}

# kernel_download FOLDER: the package, unpacked to FOLDER/root.
kernel_download() {
  local package attempt
  # As root, apt downloads as the user _apt, which cannot write here, and prints long warnings.
  local apt=(apt-get -qq -o Acquire::Retries=3 -o Acquire::http::Timeout=30)
  [ "$(id -u)" -ne 0 ] || apt+=(-o APT::Sandbox::User=root)
  kernel_package() {
    apt-cache depends linux-image-amd64 2>/dev/null |
      awk '/Depends: linux-image-[0-9]/ { print $2; exit }'
  }
  for attempt in 1 2 3; do
    package=$(kernel_package)
    if [ -n "$package" ] && (cd "$1" && "${apt[@]}" download "$package" >&2) &&
      dpkg-deb -x "$1/$package"_*.deb "$1/root"; then
      return 0
    fi
    rm -rf "$1/root" "$1"/*.deb
    # A fresh machine has no package lists; those of an old one name packages that are gone.
    if [ "$attempt" -eq 1 ] && [ "$(id -u)" -eq 0 ]; then "${apt[@]}" update >&2 || true; fi
    sleep "$attempt"
  done
  return 1
}

kernel_make() {  # FOLDER: the files for the cache end up in FOLDER/done
  local root=$1/root release module path
  say "downloading Debian's kernel (about 70 MB, once)"
  if ! command -v apt-get >/dev/null || ! kernel_download "$1"; then
    say "skipped: cannot download Debian's package linux-image-amd64 (no network, or not Debian)"
    return 77
  fi
  # Newer Debian keeps them below usr/.
  [ -d "$root/lib/modules" ] || { mkdir -p "$root/lib" && mv "$root/usr/lib/modules" "$root/lib/"; }
  for path in "$root"/lib/modules/*; do release=${path##*/}; done
  depmod -b "$root" "$release"
  mkdir -p "$1/done/modules"
  for module in "${softroce_modules[@]}"; do
    # "insmod FILE" lines, dependencies first; "builtin NAME" needs no loading.
    modprobe -d "$root" -S "$release" -D "$module" || exit
  done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$1/files" || return
  while read -r path; do
    module=${path##*/}
    case "$module" in
      *.xz) xz -dc "$path" >"$1/done/modules/${module%.xz}" ;;
      *.zst) zstd -dqc "$path" >"$1/done/modules/${module%.zst}" ;;
      *) cp "$path" "$1/done/modules/$module" ;;
    esac || return
    module=${module%.xz}
    printf '%s\n' "${module%.zst}" >>"$1/done/modules/order"
  done <"$1/files"
  cp "$root/boot/vmlinuz-$release" "$1/done/vmlinuz"
  printf '%s\n' "$release" >"$1/done/release"
}

# kernel_accelerator: prints kvm or tcg. A /dev/kvm that opens is no proof that a guest runs: inside
# some virtual machines it hangs at the first instruction. So it is tried, once after every boot of
# this machine, with the kernel alone: it panics at once (there is no root) and qemu ends.
kernel_accelerator() {
  local chosen=${SOFTROCE_ACCELERATOR:-} probe limit=8
  if [ -z "$chosen" ] && [ ! -w /dev/kvm ]; then chosen=tcg; fi
  if [ -z "$chosen" ]; then
    probe=$softroce_cache/kvm-$(cat /proc/sys/kernel/random/boot_id)
    if [ ! -s "$probe" ]; then
      rm -f "$softroce_cache"/kvm-*
      chosen=tcg
      if timeout -k 1 "$limit" qemu-system-x86_64 -accel kvm -cpu max -m 512 -smp 2 -nographic \
        -no-reboot -nic none -kernel "$kernel_dir/vmlinuz" -append "console=ttyS0 quiet panic=-1" \
        </dev/null >/dev/null 2>&1; then
        chosen=kvm
      fi
      printf '%s\n' "$chosen" >"$probe.$$"
      mv "$probe.$$" "$probe"
    fi
    chosen=$(cat "$probe")
  fi
  printf '%s\n' "$chosen"
}
