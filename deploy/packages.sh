#!/usr/bin/env bash
# The one list of Debian packages (12, bookworm), and the installation of missing ones.
# Sourced by deploy/quickstart.sh and tests/run.sh; run by itself it prints the list:
#
#     bash deploy/packages.sh build test

# To configure, build and run everything.
VERBENA_PACKAGES_BUILD=(
  g++ cmake ninja-build pkg-config
  ccache                                              # a second checkout builds in seconds
  lld                                                 # a third of the linking time
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libabsl-dev libcli11-dev libspdlog-dev libfmt-dev libxxhash-dev nlohmann-json3-dev
  libsqlite3-dev librocksdb-dev prometheus-cpp-dev libeigen3-dev libssl-dev
  zlib1g-dev libzstd-dev
  libibverbs-dev librdmacm-dev libfabric-dev libhwloc-dev
  catch2                                              # the tests are configured with the rest
)

# For tests/softroce/run.sh: a virtual machine with a real RDMA stack, and its programs.
VERBENA_PACKAGES_SOFTROCE=(
  qemu-system-x86 busybox-static cpio kmod binutils util-linux
  rdma-core ibverbs-providers ibverbs-utils rdmacm-utils perftest iproute2
)

# For tests/hosts/run.sh: hosts made of network namespaces.
VERBENA_PACKAGES_HOSTS=(iproute2 nftables openssl)

# For bench/all_reduce, which is skipped without.
VERBENA_PACKAGES_BENCH=(openmpi-bin libopenmpi-dev)

# For deploy/wheel.sh.
VERBENA_PACKAGES_WHEEL=(
  python3-dev pybind11-dev python3-pybind11 python3-setuptools python3-wheel python3-pip patchelf binutils
)

# For the Python package and its tests; everything else is built without.
VERBENA_PACKAGES_PYTHON=(
  "${VERBENA_PACKAGES_WHEEL[@]}"
  python3-numpy python3-torch python3-sklearn python3-pytest python3-mypy python3-flake8 python3-matplotlib
)

# For tests/run.sh beyond that.
VERBENA_PACKAGES_TEST=(
  python3 python3-yaml clang-format-14 shellcheck systemd
  etcd-server                                         # tests start their own members by hand
  spin                                                # tests/model
  etcd-client                                         # etcdctl, by which tests fill and compact it
  slurmctld slurmd slurm-client munge                 # likewise their own Slurm; Debian's has no configuration
  "${VERBENA_PACKAGES_PYTHON[@]}"
  "${VERBENA_PACKAGES_SOFTROCE[@]}"
  "${VERBENA_PACKAGES_HOSTS[@]}"
)

# package_list GROUP... : one name a line.
package_list() {
  local group
  for group in "$@"; do
    case "$group" in
      build) printf '%s\n' "${VERBENA_PACKAGES_BUILD[@]}" ;;
      test) printf '%s\n' "${VERBENA_PACKAGES_TEST[@]}" ;;
      softroce) printf '%s\n' "${VERBENA_PACKAGES_SOFTROCE[@]}" ;;
      hosts) printf '%s\n' "${VERBENA_PACKAGES_HOSTS[@]}" ;;
      bench) printf '%s\n' "${VERBENA_PACKAGES_BENCH[@]}" ;;
      python) printf '%s\n' "${VERBENA_PACKAGES_PYTHON[@]}" ;;
      wheel) printf '%s\n' "${VERBENA_PACKAGES_WHEEL[@]}" ;;
      *) printf 'packages.sh: unknown group "%s"; allowed: build, test, softroce, hosts, bench, python, wheel\n' "$group" >&2; return 2 ;;
    esac
  done
}

# missing_packages GROUP... : those of the list that are not installed.
missing_packages() {
  local name
  while read -r name; do
    # "ii" is "installed, and configured"; a removed package may still be known to dpkg.
    case "$(dpkg-query -W -f='${db:Status-Abbrev}' "$name" 2>/dev/null)" in
      ii*) ;;
      *) printf '%s\n' "$name" ;;
    esac
  done < <(package_list "$@")
}

# ensure_packages GROUP... : installs missing packages (as root), or prints the command and fails (otherwise).
ensure_packages() {
  local missing
  if ! command -v dpkg-query >/dev/null; then
    printf 'This is not a Debian system: these packages, or those that correspond to them here, are needed:\n' >&2
    package_list "$@" | paste -sd ' ' >&2
    printf 'Going on in the hope that they are there.\n' >&2
    return 0
  fi
  mapfile -t missing < <(missing_packages "$@")
  [ "${#missing[@]}" -eq 0 ] && return 0
  # Debian starts a package's service when it installs it. Tests need the program alone.
  local services=() service unit
  [[ " ${missing[*]} " == *" etcd-server "* ]] && services+=(etcd)
  [[ " ${missing[*]} " == *" munge "* ]] && services+=(munge)
  if [ "$(id -u)" -ne 0 ]; then
    printf 'Packages are missing. Install them, then run this again:\n' >&2
    [ "${#services[@]}" -eq 0 ] ||
      printf '  sudo systemctl mask %s   # unless this machine is to run it\n' "${services[*]}" >&2
    printf '  sudo apt-get install --no-install-recommends %s\n' "${missing[*]}" >&2
    return 1
  fi
  for service in "${services[@]}"; do
    unit=/etc/systemd/system/$service.service
    if [ -e "$unit" ] || [ -L "$unit" ]; then continue; fi
    mkdir -p "${unit%/*}" && ln -s /dev/null "$unit"
    printf 'The service %s is masked: it does not start on this machine (systemctl unmask %s ends that).\n' \
      "$service" "$service" >&2
  done
  printf 'Installing %d missing packages: %s\n' "${#missing[@]}" "${missing[*]}" >&2
  # A fresh machine has no package lists yet; another apt may be at work (two quickstarts at once).
  local apt=(apt-get -qq -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0)
  export DEBIAN_FRONTEND=noninteractive
  if ! "${apt[@]}" update >&2 ||
    ! "${apt[@]}" install --yes --no-install-recommends "${missing[@]}" >/dev/null; then
    printf 'apt-get could not install them: see its message above.\n' >&2
    return 1
  fi
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  if [ "$#" -eq 0 ]; then set -- build test; fi
  package_list "$@" | sort -u
fi
