#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests.
#   bash tests/run.sh          Release build in build/, every test
#   bash tests/run.sh --full   what CI runs: no warning with g++ and clang++, and the unit tests under clang++'s sanitizers
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tests/support/packages.sh

jobs=${POSLSH_JOBS:-$(nproc)}
passed=0
failed=0

# check FOLDER TARGET LABELS TESTS_AT_ONCE CMAKE_OPTION...: builds TARGET in FOLDER, runs the tests whose label matches.
check() {
  local folder=$1 target=$2 labels=$3 at_once=$4 log=$1/ctest.log bad=1 total=1
  shift 4
  printf '\n== %s\n' "$folder"
  if cmake -S . -B "$folder" "$@" && cmake --build "$folder" --target "$target" -j "$jobs"; then
    ctest --test-dir "$folder" --no-tests=error --output-on-failure -j"$at_once" -L "$labels" | tee "$log" || true
    # "97% tests passed, 1 tests failed out of 30"; no such line: no test ran, which counts as a failure.
    read -r bad total < <(sed -nE 's/.* ([0-9]+) tests? failed out of ([0-9]+)$/\1 \2/p' "$log"; echo 1 1)
  fi
  passed=$((passed + total - bad))
  failed=$((failed + bad))
}

packages=(g++ cmake make pkgconf libeigen3-dev libopenblas-dev libspectra-dev catch2 libbenchmark-dev libcli11-dev
  gnuplot-nox jq)
case "${1-}" in
  "")
    need "${packages[@]}"
    check build all . 2 -DPOSLSH_WARNINGS_AS_ERRORS=OFF
    ;;
  --full)
    need "${packages[@]}" clang libtorch-dev
    need "libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev"
    check build all . 2 -DPOSLSH_WARNINGS_AS_ERRORS=ON -DPOSLSH_TORCH=ON
    # clang++ compiles everything, but runs what the build above does not cover: its unit tests run once, sanitized.
    check build/clang all build 2 -DCMAKE_CXX_COMPILER=clang++ -DPOSLSH_WARNINGS_AS_ERRORS=ON \
      '-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG' -DPOSLSH_BUILD_UNIT_TESTS=OFF -DPOSLSH_BUILD_BENCHMARKS=OFF
    check build/sanitize poslsh_unit_tests unit 2 -DCMAKE_CXX_COMPILER=clang++ -DPOSLSH_WARNINGS_AS_ERRORS=ON \
      -DCMAKE_BUILD_TYPE=Debug '-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g1' -DPOSLSH_SANITIZE=address,undefined \
      -DPOSLSH_BUILD_EXAMPLES=OFF -DPOSLSH_BUILD_BENCHMARKS=OFF
    ;;
  *)
    echo "usage: bash tests/run.sh [--full]" >&2
    exit 2
    ;;
esac

printf '\n%d passed, %d failed\n' "$passed" "$failed"
((failed == 0 && passed > 0))
