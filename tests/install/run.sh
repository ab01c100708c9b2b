#!/bin/bash
# Installs Sluice into a temporary prefix, builds the example trainer outside the tree by pkg-config and by CMake, and trains
# with it against the installed daemons. Ends with "N passed, N failed". Part of ./check.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
root=$PWD
work=$(mktemp -d)
prefix=$work/prefix
pids=()
passed=0 failed=0

cleanup() {
  for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null; done
  wait
  rm -rf "$work"
}
trap cleanup EXIT

# case_ NAME COMMAND…: counts it; shows its output only if it failed.
case_() {
  local name=$1
  shift
  if "$@" > "$work/output" 2>&1; then
    echo "passed: $name"
    passed=$((passed + 1))
  else
    echo "FAILED: $name"
    tail -n 40 "$work/output" | sed 's/^/  | /'
    failed=$((failed + 1))
  fi
}

installs() {
  "$root/deploy/install" "$prefix" || return 1
  for file in bin/sluice-{scheduler,server,worker} bin/sluicectl include/sluice/client.h lib/libsluice.so; do
    [[ -s $prefix/$file ]] || { echo "$file is missing"; return 1; }
  done
}

# The header must stand alone, and bring no type of gRPC, protobuf or Abseil with it.
header_is_clean() {
  ! grep -nE '(absl|grpc|google/protobuf|\.pb\.h|base/|transport/)' "$prefix/include/sluice/client.h" &&
    echo '#include "sluice/client.h"' > "$work/header.cc" &&
    g++ -std=c++20 -Wall -Wextra -Wno-missing-field-initializers -Werror -fsyntax-only -I"$prefix/include" "$work/header.cc"
}

# Nothing but what the header declares is visible (and functions of the standard library's own templates).
library_is_private() {
  local foreign
  foreign=$(nm -DC --defined-only "$prefix/lib/libsluice.so" | awk '{ $1 = $2 = ""; print substr($0, 3) }' |
            grep -vE '^(sluice::(Client|Handle|Status)::|std::)' | head -n 5)
  [[ -z $foreign ]] || { echo "visible, but not in the header:"; echo "$foreign"; return 1; }
}

builds_with_pkg_config() (
  cp "$root/worker/examples/custom_trainer.cc" "$work/" && cd "$work" || return 1
  export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
  # shellcheck disable=SC2046
  g++ -O2 custom_trainer.cc $(pkg-config --cflags --libs sluice) -o trainer-pkg
)

builds_with_cmake() (
  mkdir -p "$work/cmake" && cat > "$work/cmake/CMakeLists.txt" << CMAKE && cd "$work/cmake" &&
cmake_minimum_required(VERSION 3.20)
project(custom_trainer CXX)
find_package(Sluice 0.1 REQUIRED)
add_executable(trainer-cmake $work/custom_trainer.cc)
target_link_libraries(trainer-cmake Sluice::sluice)
CMAKE
    cmake -DCMAKE_PREFIX_PATH="$prefix" . && make
)

# A scheduler and a server from the prefix; the port of the scheduler in $port.
start_cluster() {
  "$prefix/bin/sluice-scheduler" --node.port=0 --node.port_file="$work/port" > "$work/scheduler.log" 2>&1 &
  pids+=($!)
  for _ in $(seq 300); do
    [[ -s $work/port ]] && break
    kill -0 "${pids[0]}" || { cat "$work/scheduler.log"; return 1; }
    sleep 0.1
  done
  port=$(cut -d' ' -f1 "$work/port") || return 1
  "$prefix/bin/sluice-server" --node.scheduler="127.0.0.1:$port" > "$work/server.log" 2>&1 &
  pids+=($!)
}

# Two workers find the weights that the example's data have.
trains() {
  local trainer=$1 job=$2 flags ranks=() rank
  flags=(--node.scheduler="127.0.0.1:$port" --job.workers=2 --steps=200 --job.name="$job")
  for rank in 0 1; do
    RANK=$rank timeout 120 "$trainer" "${flags[@]}" > "$work/$job-$rank.log" 2>&1 &
    ranks+=($!)
  done
  local code=0
  for pid in "${ranks[@]}"; do wait "$pid" || code=1; done
  cat "$work/$job"-*.log
  # Both must have found what the data were drawn from, and have the same bits.
  if [[ $code -ne 0 ]] ||
     ! grep -qE 'rank 0 w = \((3\.0|2\.9)[0-9]+, -(2\.0|1\.9)[0-9]+\), b = (0\.4|0\.5)' "$work/$job-0.log" ||
     [[ $(sed 's/^rank [0-9]//' "$work/$job-0.log" | tail -n 1) != $(sed 's/^rank [0-9]//' "$work/$job-1.log" | tail -n 1) ]]; then
    cat "$work/scheduler.log" "$work/server.log"
    return 1
  fi
}

# Sluice's flags go by their full names; the trainer's own are not taken for them (its --steps is in trains, above).
flags_are_told_apart() {
  local trainer=$work/trainer-pkg
  "$trainer" --print-config --name=mine --job.codec=int8 > "$work/settings" || { echo "code $?"; return 1; }
  cat "$work/settings"
  grep -qE '^job\.name += linear +\(setting\)' "$work/settings" || return 1
  grep -qE '^job\.codec += int8 +\(flag\)' "$work/settings" || return 1
  if "$trainer" --job.codce=int8 2> "$work/refused"; then echo "--job.codce was taken"; return 1; fi
  cat "$work/refused"
  grep -q 'nearest is --job.codec' "$work/refused"
}

ends_in_order() {
  local pid code=0
  for pid in "${pids[@]}"; do kill -TERM "$pid"; done
  for pid in "${pids[@]}"; do wait "$pid" || { echo "a daemon ended with code $?"; code=1; }; done
  pids=()
  return $code
}

case_ "deploy/install into an empty prefix" installs
case_ "the header stands alone" header_is_clean
case_ "the library shows only what the header declares" library_is_private
case_ "builds with g++ and pkg-config" builds_with_pkg_config
case_ "builds with CMake's find_package" builds_with_cmake
case_ "the trainer tells Sluice's flags from its own" flags_are_told_apart
case_ "the installed daemons start" start_cluster
port=$(cut -d' ' -f1 "$work/port" 2> /dev/null)
case_ "trains (built by pkg-config)" trains "$work/trainer-pkg" pkg
case_ "trains (built by CMake)" trains "$work/cmake/trainer-cmake" cmake
case_ "SIGTERM ends the daemons in order" ends_in_order
echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
