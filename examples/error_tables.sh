#!/usr/bin/env bash
# Measures how the error of positional LSH falls with the number of draws: both real inputs, every head, three sigmas,
# causal and not. Writes docs/data/error_tables.csv and docs/data/error_tables.md; takes a few minutes.
# The ratio merge is taken in one sweep over all draws, which equals it block by block up to rounding. The mean merge
# has no such form and is much slower: it gets fewer seeds, and the paper's independent draws only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tests/support/packages.sh

seeds=${POSLSH_SEEDS:-20}
mean_seeds=${POSLSH_MEAN_SEEDS:-3}
build=build/demo
parts=build/error_tables
need g++ cmake make libeigen3-dev libcli11-dev
cmake -S . -B $build -DPOSLSH_BUILD_TESTS=OFF -DPOSLSH_BUILD_BENCHMARKS=OFF >/dev/null
cmake --build $build --target compare -j "$(nproc)"
mkdir -p $parts docs/data

# measure INPUT NAME ARGUMENT...
measure() {
  local input=$1 name=$2
  shift 2
  echo "$name: $*" >&2
  $build/examples/compare --input "$input" --sigma 16,64,256 --samples 16,32,64,128,256,512 --repeat 1 \
    --threads "$(nproc)" --csv $parts/"$name".csv "$@" >/dev/null
}
for input in examples/data/text_qkv.npy tests/data/ocr_qkv.npy; do
  for causal in '' --causal; do
    name=$(basename "$input" _qkv.npy)$causal
    # shellcheck disable=SC2086  # empty or one word
    measure "$input" "$name-ratio" $causal --seeds "$seeds" --methods one_sweep,exact \
      --sampling independent,stratified,importance
    # shellcheck disable=SC2086
    measure "$input" "$name-mean" $causal --seeds "$mean_seeds" --methods blocks_mean --sampling independent
  done
done

# One file of all heads, without the columns that hold times or are the same everywhere.
awk -F, -v OFS=, '
  FNR == 1 && NR > 1 { next }
  NR == 1 { $1 = "input" } NR > 1 { sub(".*/", "", $1); sub("_qkv.npy", "", $1) }
  $9 != "all" { print $1, $5, $9, $10, $11, $12, $13, $8, $16, $17, $18, $19, $20 }' \
  $parts/{text,ocr}{,--causal}-{ratio,mean}.csv >docs/data/error_tables.csv

cache() { sed -n "s/^$1:[A-Z]*=//p" $build/CMakeCache.txt; }
{
  echo '# Error of positional LSH against the number of draws'
  echo
  echo "Written by \`bash examples/error_tables.sh\`, $(date -u +%Y-%m-%d)." \
    "CPU: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores." \
    "Compiler: $("$(cache CMAKE_CXX_COMPILER)" --version | head -1)," \
    "flags $(cache CMAKE_CXX_FLAGS_RELEASE) -march=native -std=c++20."
  awk -f examples/error_tables.awk docs/data/error_tables.csv
} >$parts/error_tables.md
mv $parts/error_tables.md docs/data/error_tables.md
echo 'docs/data/error_tables.md' >&2
