#!/usr/bin/env bash
# The initial file system of a guest: an initramfs of busybox, the kernel modules, and copies of the programs
# under test. Sourced by run.sh.
#
# A guest's root is this machine's, over 9p. Every page that a program touches first is then a round
# trip through emulated virtio, so programs and their libraries are laid over that root, stripped,
# from the initramfs, which is memory. They keep their paths.

# Used by the harness itself or by most cases.
softroce_tools=(
  bash cat chmod chroot cp cut date dmesg env grep head kill ls mkdir mktemp mount mv prlimit ps
  readlink rm sed seq setsid sleep sort stat tail timeout tr uname wc
  ip tc ss rdma ibv_devinfo rping ib_write_bw ib_write_lat ib_send_lat
)

# libraries_of FILE: the shared libraries it is linked with.
libraries_of() {
  ldd "$1" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\// { print $1 }'
}

# overlay_add FOLDER FILE: copies FILE to the same (real) path below FOLDER, without debug lines.
overlay_add() {
  local real
  real=$(realpath "$2") || return
  [ ! -e "$1$real" ] || return 0
  mkdir -p "$1${real%/*}"
  # Files that strip does not understand (scripts) are copied unchanged, and all files without strip.
  strip --strip-debug -o "$1$real" "$real" 2>/dev/null || cp "$real" "$1$real"
}

# overlay_fill FOLDER PROGRAM...: the tools, these programs, and their libraries.
overlay_fill() {
  local folder=$1 path name
  local files=()
  shift
  for name in "${softroce_tools[@]}"; do
    if path=$(command -v "$name") && [ -f "$path" ]; then files+=("$path"); fi
  done
  # Loaded by name at run time: rdma-core, and the provider of soft-RoCE.
  for path in /usr/lib/*/{libibverbs.so.1,librdmacm.so.1,libibverbs/librxe-*.so}; do [ ! -e "$path" ] || files+=("$path"); done
  files+=("$@")
  mapfile -t files < <(
    {
      printf '%s\n' "${files[@]}"
      for path in "${files[@]}"; do libraries_of "$path"; done
    } | sort -u)
  for path in "${files[@]}"; do overlay_add "$folder" "$path" || return; done
}

# image_make FILE KERNEL-FOLDER INIT PROGRAM...: writes the initramfs to FILE. It is not compressed:
# that would take longer than it saves.
image_make() {
  local image=$1 kernel=$2 init=$3 stage=$1.stage
  shift 3
  mkdir -p "$stage"/{bin,sbin,usr/bin,usr/sbin,proc,sys,dev,root,host,memory,overlay}
  cp "$(command -v busybox)" "$stage/bin/busybox"
  cp -r "$kernel/modules" "$stage/modules"
  cp "$init" "$stage/init"
  chmod +x "$stage/init"
  overlay_fill "$stage/overlay" "$@" || return
  (cd "$stage" && find . | cpio -o -H newc --quiet >"$image") || return
  rm -rf "$stage"
}
