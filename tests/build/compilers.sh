#!/usr/bin/env bash
# Compiles every entry point without a warning, and runs a small program and the golden draws, in each combination of compiler, standard,
# standard library, exceptions and instructions that this machine has. One line each: ok, FAILED or skipped.
# Takes minutes, so run it by hand. clang++-19 and libc++: apt-get install clang-19 libc++-19-dev libc++abi-19-dev
# Usage: compilers.sh [EIGEN_FOLDER], by default /usr/include/eigen3
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
eigen=${1:-/usr/include/eigen3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
warnings=(-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)
failed=0

# cpu_has FLAG...: whether all stand in /proc/cpuinfo.
cpu_has() {
  local flag
  for flag in "$@"; do
    grep -m1 '^flags' /proc/cpuinfo | grep -qw "$flag" || return 1
  done
}

# has_libcxx COMPILER: whether it finds the headers of libc++.
has_libcxx() {
  echo '#include <version>' | "$1" -std=c++20 -stdlib=libc++ -x c++ -fsyntax-only - 2>/dev/null
}

# check RUN PROGRAM COMMAND...: COMMAND compiles every entry point, and PROGRAM, which runs if RUN is yes.
check() {
  local run=$1 program=$2
  shift 2
  local outcome=ok
  if ! { "$@" "${warnings[@]}" -fsyntax-only "$root/tests/build/compile_time.cpp" &&
    "$@" "${warnings[@]}" -O1 "$program" -o "$scratch/program" -pthread; } >"$scratch/log" 2>&1; then
    outcome="FAILED to compile"
  elif [[ $run != yes ]]; then
    outcome="ok, not run: this CPU lacks the instructions"
  elif ! "$scratch/program" >"$scratch/log" 2>&1; then
    outcome="FAILED to run"
  elif ! { "$@" "${warnings[@]}" -O2 "$root/tests/build/draws.cpp" -o "$scratch/draws" &&
    "$scratch/draws"; } >"$scratch/log" 2>&1; then
    outcome="FAILED: other draws"
  fi
  echo "$outcome"
  [[ $outcome == ok* ]] && return
  failed=1
  head -n 40 "$scratch/log"
}

# A compiler, a standard, and the standard library where there is a choice.
combinations=(
  "g++ c++20" "g++ c++23"
  "clang++ c++20" "clang++ c++2b"
  "clang++-19 c++20" "clang++-19 c++23" "clang++-19 c++20 -stdlib=libc++" "clang++-19 c++23 -stdlib=libc++"
)
for combination in "${combinations[@]}"; do
  read -r compiler standard library <<<"$combination"
  if ! command -v "$compiler" >/dev/null; then
    printf '%-56s skipped: not installed\n' "$combination"
    continue
  fi
  if [[ -n $library ]] && ! has_libcxx "$compiler"; then
    printf '%-56s skipped: no libc++\n' "$combination"
    continue
  fi
  compile=("$compiler" "-std=$standard" ${library:+"$library"} "-I$root/include" -isystem "$eigen")
  # g++ 12 calls the operands of its own AVX-512 intrinsics uninitialised (GCC bug 105593).
  [[ $compiler == g++ ]] && compile+=(-Wno-uninitialized -Wno-maybe-uninitialized -Wno-array-bounds)

  printf '%-56s ' "$combination"
  check yes "$root/examples/consumer/main.cpp" "${compile[@]}"
  printf '%-56s ' "$combination, no exceptions, no RTTI"
  check yes "$root/tests/build/no_exceptions.cpp" "${compile[@]}" -fno-exceptions -fno-rtti
  [[ $(uname -m) == x86_64 ]] || continue
  printf '%-56s ' "$combination -march=haswell"
  cpu_has avx2 fma bmi2 && run=yes || run=no
  check "$run" "$root/examples/consumer/main.cpp" "${compile[@]}" -march=haswell
  printf '%-56s ' "$combination -march=x86-64-v4"
  cpu_has avx512f avx512bw avx512cd avx512dq avx512vl && run=yes || run=no
  check "$run" "$root/examples/consumer/main.cpp" "${compile[@]}" -march=x86-64-v4
done
exit "$failed"
