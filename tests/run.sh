#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests.
#   bash tests/run.sh          Release build in build/, every test
#   bash tests/run.sh --full   what CI runs: no warning with g++ and clang++, the unit tests under clang++'s sanitizers, a
#                              minute of fuzzing each target, static analysis
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tests/support/packages.sh

jobs=${POSLSH_JOBS:-$(nproc)}
passed=0
failed=0

# build FOLDER "TARGET..." CMAKE_OPTION...: what does not build counts as a failure.
build() {
  local folder=$1 targets
  read -ra targets <<<"$2"
  shift 2
  printf '\n== %s\n' "$folder"
  if ! { cmake -S . -B "$folder" "$@" && cmake --build "$folder" --target "${targets[@]}" -j "$jobs"; }; then
    count 0 1
    return 1
  fi
}

# check FOLDER TESTS_AT_ONCE CTEST_OPTION...: runs tests and counts them.
check() {
  local folder=$1 at_once=$2 log=$1/ctest.log bad total
  shift 2
  ctest --test-dir "$folder" --no-tests=error --output-on-failure -j"$at_once" "$@" | tee "$log" || true
  # "97% tests passed, 1 tests failed out of 30"; no such line: no test ran, which counts as a failure.
  read -r bad total < <(sed -nE 's/.* ([0-9]+) tests? failed out of ([0-9]+)$/\1 \2/p' "$log"; echo 1 1)
  count "$((total - bad))" "$bad"
}

count() {
  passed=$((passed + $1))
  failed=$((failed + $2))
}

packages=(g++ cmake make pkgconf libeigen3-dev libopenblas-dev libspectra-dev catch2 libbenchmark-dev libcli11-dev
  gnuplot-nox jq)
case "${1-}" in
  "")
    need "${packages[@]}"
    build build all -DPOSLSH_WARNINGS_AS_ERRORS=OFF && check build 2
    ;;
  --full)
    need "${packages[@]}" clang libtorch-dev clang-tidy cppcheck shellcheck
    need "libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev"
    build build all -DPOSLSH_WARNINGS_AS_ERRORS=ON -DPOSLSH_TORCH=ON && check build 2
    # clang++ compiles everything, one unit a program, but runs what the build above does not cover: its unit tests run
    # once, sanitized. Compile time is compared for one compiler.
    build build/clang all -DCMAKE_CXX_COMPILER=clang++ -DPOSLSH_WARNINGS_AS_ERRORS=ON \
      '-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG' -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=0 \
      -DPOSLSH_BUILD_UNIT_TESTS=OFF -DPOSLSH_BUILD_BENCHMARKS=OFF &&
      check build/clang 2 -L build -E compile_time
    # Accesses are checked by calls where there are many in a function: less to compile.
    build build/sanitize "poslsh_unit_tests poslsh_fuzzers" -DCMAKE_CXX_COMPILER=clang++ -DPOSLSH_WARNINGS_AS_ERRORS=ON \
      -DCMAKE_BUILD_TYPE=Debug '-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g1 -mllvm -asan-instrumentation-with-call-threshold=200' \
      -DPOSLSH_SANITIZE=address,undefined -DPOSLSH_BUILD_FUZZERS=ON -DPOSLSH_BUILD_EXAMPLES=OFF \
      -DPOSLSH_BUILD_BENCHMARKS=OFF &&
      { check build/sanitize 2 -L unit && check build/sanitize 8 -L fuzz; }
    printf '\n== static analysis\n'
    if bash tests/build/static.sh --quick; then count 1 0; else count 0 1; fi
    ;;
  *)
    echo "usage: bash tests/run.sh [--full]" >&2
    exit 2
    ;;
esac

printf '\n%d passed, %d failed\n' "$passed" "$failed"
((failed == 0 && passed > 0))
