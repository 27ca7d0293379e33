#!/usr/bin/env bash
# The main job in one command: installs what is missing, builds examples/compare and measures, on real queries,
# keys and values, how near positional LSH comes to exact ALiBi attention.
# Leaves build/demo/compare.csv and compare.png.
# Usage: demo.sh [ARGUMENT...]; with arguments compare runs with those alone, such as --input mine.npy --sigma 32
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tests/support/packages.sh

need g++ cmake make libeigen3-dev libcli11-dev gnuplot-nox
cmake -S . -B build/demo -DPOSLSH_BUILD_TESTS=OFF -DPOSLSH_BUILD_BENCHMARKS=OFF >/dev/null
cmake --build build/demo --target compare -j "$(nproc)"

(($#)) || set -- --input examples/data/text_qkv.npy --causal --sigma 16,64 --samples 16,32,64,128,256 \
  --sampling independent,stratified,importance,mixture --csv build/demo/compare.csv --plot build/demo/compare.png
build/demo/examples/compare "$@"
