#!/bin/bash
# Installs the Debian packages that Sluice needs, if any is missing: deploy/setup.sh GROUP…
#   build   what ./quickstart needs: compiler, Bazel, libraries, the data set
#   check   what ./check needs besides: libFuzzer, CMake, pkg-config
#   bench   what the benchmarks compare with: iperf3, PyTorch, network tools
#   convergence   what bench/convergence needs besides: a text, and matplotlib for its plot
#   digits  no package: the data set of //compression:convergence_test, taken out of one whose dependencies are large
# Says nothing and takes no time when all are there. docs/dependencies.md says what each package is for.
set -euo pipefail

build=(bash ca-certificates g++ bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto
       libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev
       libxxhash-dev libsqlite3-dev zlib1g-dev prometheus-cpp-dev libcivetweb-dev nlohmann-json3-dev libeigen3-dev
       libgtest-dev libgmock-dev libbenchmark-dev python3-minimal python3 dataset-fashion-mnist)
check=(clang-16 libclang-rt-16-dev cmake pkg-config make python3-grpcio python3-yaml)
bench=(iperf3 iproute2 python3-torch)
convergence=(bible-kjv python3-matplotlib)

# Out of scikit-learn's Debian package into third_party/datasets, which git ignores.
fetch_digits() {
  local to=third_party/datasets/digits.csv.gz from=usr/lib/python3/dist-packages/sklearn/datasets/data/digits.csv.gz
  [[ -f $to ]] && return
  local folder
  folder=$(mktemp -d)
  # Lists may be missing or old: then they are fetched, which needs root.
  if ! { (cd "$folder" && { apt-get -qq download python3-sklearn || { "${as_root[@]}" apt-get -qq update &&
          apt-get -qq download python3-sklearn; }; }) && dpkg -x "$folder"/python3-sklearn_*.deb "$folder" &&
         cp "$folder/$from" "$to"; } > "$folder/log" 2>&1; then
    tail -n 5 "$folder/log" >&2
    rm -rf "$folder"
    echo "deploy/setup.sh: the digits could not be fetched (above); tests that read them skip. Check the network and /etc/apt/sources.list." >&2
    return 1
  fi
  rm -rf "$folder"
}

as_root=()
[[ $(id -u) -ne 0 ]] && command -v sudo > /dev/null && as_root=(sudo)

packages=()
for group in "${@:-build}"; do
  case $group in
    build) packages+=("${build[@]}") ;;
    check) packages+=("${check[@]}") ;;
    bench) packages+=("${bench[@]}") ;;
    convergence) packages+=("${convergence[@]}") ;;
    digits) (cd "$(dirname "${BASH_SOURCE[0]}")/.." && fetch_digits) ;;
    *) echo "deploy/setup.sh: no group \"$group\": build, check, bench, convergence, digits" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query > /dev/null; then
  echo "Sluice's set-up knows Debian 12 only, and this system has no dpkg. docs/dependencies.md lists what to install by hand." >&2
  exit 1
fi

[[ ${#packages[@]} -eq 0 ]] && exit 0
installed=$(dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' "${packages[@]}" 2> /dev/null | sed -n 's/^ii *//p' || true)
missing=()
for package in "${packages[@]}"; do
  grep -qxF -- "$package" <<< "$installed" || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

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
trap 'rm -f "$log"' EXIT
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -o DPkg::Lock::Timeout=300)
if ! { "${apt[@]}" update && "${apt[@]}" install --no-install-recommends "${missing[@]}"; } > "$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "apt-get failed (above). Check the network and /etc/apt/sources.list, then start again." >&2
  exit 1
fi
