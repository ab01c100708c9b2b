#!/bin/bash
# Installs the Debian packages that Sluice needs, if any is missing: deploy/setup.sh GROUP…
#   build   what ./quickstart needs: compiler, Bazel, libraries, the data set
#   check   what ./check needs besides: libFuzzer, CMake, pkg-config
#   bench   what the benchmarks compare with: iperf3, PyTorch, network tools
#   racks   what deploy/namespaces needs: iproute2, sysctl
#   convergence   what bench/convergence needs besides: a text, and matplotlib for its plot
#   vm      what tests/rdma_vm boots: an emulator, RDMA tools, and a kernel of Debian's that is not installed
#   digits  no package: the data set of //compression:convergence_test, taken out of one whose dependencies are large
# Says nothing and takes no time when all are there. docs/dependencies.md says what each package is for.
set -euo pipefail

build=(bash ca-certificates g++ bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto
       libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev
       libxxhash-dev libsqlite3-dev zlib1g-dev prometheus-cpp-dev libcivetweb-dev nlohmann-json3-dev libeigen3-dev
       libibverbs-dev libyaml-cpp-dev libpugixml-dev libmetis-dev libgtest-dev libgmock-dev libbenchmark-dev python3-minimal python3 dataset-fashion-mnist)
check=(iproute2 procps clang-16 libclang-rt-16-dev cmake pkg-config make python3-grpcio python3-yaml)
racks=(iproute2 procps)
bench=(iperf3 iproute2 python3-torch)
convergence=(bible-kjv python3-matplotlib)
vm=(qemu-system-x86 busybox-static kmod iproute2 rdma-core ibverbs-providers ibverbs-utils perftest)

# Packages that are unpacked and not installed come with apt's own check of their signatures, into the current folder.
# Lists may be missing or old: then they are fetched, which needs root.
download() {
  apt-get -qq download "$1" || { "${as_root[@]}" apt-get -qq update && apt-get -qq download "$1"; }
}

# Out of scikit-learn's Debian package into third_party/datasets, which git ignores.
fetch_digits() {
  local to=third_party/datasets/digits.csv.gz from=usr/lib/python3/dist-packages/sklearn/datasets/data/digits.csv.gz
  [[ -f $to ]] && return
  local folder
  folder=$(mktemp -d)
  if ! { (cd "$folder" && download python3-sklearn) && dpkg -x "$folder"/python3-sklearn_*.deb "$folder" &&
         cp "$folder/$from" "$to"; } > "$folder/log" 2>&1; then
    tail -n 5 "$folder/log" >&2
    rm -rf "$folder"
    echo "deploy/setup.sh: the digits could not be fetched (above); tests that read them skip. Check the network and /etc/apt/sources.list." >&2
    return 1
  fi
  rm -rf "$folder"
}

# Debian's stock kernel and those of its modules that tests/rdma_vm may load, into third_party/kernel, which git ignores.
unpack_kernel() {  # into a folder that holds nothing else
  local package
  package=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
  if [[ -z $package ]]; then
    "${as_root[@]}" apt-get -qq update
    package=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
  fi
  [[ -n $package ]] || { echo "apt knows no package linux-image-amd64, or not on which kernel it depends"; return 1; }
  local version=${package#linux-image-} modules=./lib/modules/${package#linux-image-}
  (cd "$1" && download "$package") &&
    dpkg-deb --fsys-tarfile "$1"/linux-image-*.deb | tar -x -C "$1" --wildcards --no-wildcards-match-slash \
      "./boot/vmlinuz-$version" \
      "$modules/modules.*" "$modules/kernel"/{arch,crypto,lib,net,fs/configfs,drivers/infiniband,drivers/virtio} \
      "$modules/kernel/drivers/net/*.ko" "$modules/kernel/drivers/char/virtio_console.ko" &&
    rm "$1"/linux-image-*.deb && mv "$1/boot/vmlinuz-$version" "$1/vmlinuz" && rmdir "$1/boot" &&
    PATH=$PATH:/usr/sbin:/sbin depmod -b "$1" "$version" && echo "$version" > "$1/version"
}

fetch_kernel() {
  local to=third_party/kernel
  [[ -f $to/version ]] && return
  local folder
  mkdir -p "$to" && folder=$(mktemp -d -p "$to")
  if ! unpack_kernel "$folder" > "$folder.log" 2>&1; then
    tail -n 5 "$folder.log" >&2
    rm -rf "$folder" "$folder.log"
    echo "deploy/setup.sh: the kernel for tests/rdma_vm could not be fetched (above). Check the network and /etc/apt/sources.list." >&2
    return 1
  fi
  rm -rf "${to:?}/lib" "$to/vmlinuz"
  mv "$folder"/{lib,vmlinuz,version} "$to"
  rm -rf "$folder" "$folder.log"
}

as_root=()
[[ $(id -u) -ne 0 ]] && command -v sudo > /dev/null && as_root=(sudo)

packages=() kernel=
for group in "${@:-build}"; do
  case $group in
    build) packages+=("${build[@]}") ;;
    check) packages+=("${check[@]}") ;;
    bench) packages+=("${bench[@]}") ;;
    racks) packages+=("${racks[@]}") ;;
    convergence) packages+=("${convergence[@]}") ;;
    vm) packages+=("${vm[@]}"); kernel=1 ;;
    digits) (cd "$(dirname "${BASH_SOURCE[0]}")/.." && fetch_digits) ;;
    *) echo "deploy/setup.sh: no group \"$group\": build, check, racks, bench, convergence, vm, digits" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query > /dev/null; then
  echo "Sluice's set-up knows Debian 12 only, and this system has no dpkg. docs/dependencies.md lists what to install by hand." >&2
  exit 1
fi

# Installs those of the packages given that are missing.
install_missing() {
  local installed missing=() package log
  installed=$(dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' "$@" 2> /dev/null | sed -n 's/^ii *//p' || true)
  for package in "$@"; do
    grep -qxF -- "$package" <<< "$installed" || missing+=("$package")
  done
  [[ ${#missing[@]} -eq 0 ]] && return

  # shellcheck disable=SC1091
  if ! (. /etc/os-release && [[ ${ID:-} == debian && ${VERSION_ID:-} == 12 ]]); then
    echo "Sluice's set-up knows Debian 12 only; this is $(. /etc/os-release 2> /dev/null && echo "${PRETTY_NAME:-unknown}")." >&2
    echo "Missing here: ${missing[*]}. docs/dependencies.md says what each is for." >&2
    exit 1
  fi

  if [[ $(id -u) -ne 0 && ${#as_root[@]} -eq 0 ]]; then
    echo "These packages are missing, and neither root nor sudo is at hand to install them:" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi

  echo "Installing ${#missing[@]} Debian packages: ${missing[*]}"
  log=$(mktemp)
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -o DPkg::Lock::Timeout=300)
  if ! { "${apt[@]}" update && "${apt[@]}" install --no-install-recommends "${missing[@]}"; } > "$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "apt-get failed (above). Check the network and /etc/apt/sources.list, then start again." >&2
    exit 1
  fi
  rm -f "$log"
}

[[ ${#packages[@]} -eq 0 ]] || install_missing "${packages[@]}"
[[ -z $kernel ]] || (cd "$(dirname "${BASH_SOURCE[0]}")/.." && fetch_kernel)
