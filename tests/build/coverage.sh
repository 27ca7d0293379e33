#!/usr/bin/env bash
# Lines and branches of include/poslsh that the unit tests run, by g++ and gcovr; fails below 97 % of the lines.
# Leaves coverage.txt (with the lines not run), coverage.csv, coverage.json and the pages coverage.html in the build folder.
# Takes a quarter of an hour or more. Usage: bash tests/build/coverage.sh [BUILD_FOLDER], by default build/coverage
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tests/support/packages.sh

folder=${1:-build/coverage}
least=97
jobs=${POSLSH_JOBS:-$(nproc)}

need g++ cmake make libeigen3-dev libspectra-dev catch2 gcovr

flags=(
  -O0                                           # -O1 -fno-inline merges one line in 25
  --coverage
  -fprofile-update=atomic                       # tests have threads
  '-fprofile-filter-files=.*/include/poslsh/.*' # Eigen, Catch2 and the tests run without counters
)
cmake -S . -B "$folder" -DCMAKE_CXX_COMPILER=g++ -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_FLAGS_DEBUG=${flags[*]}" \
  -DPOSLSH_BUILD_EXAMPLES=OFF -DPOSLSH_BUILD_BENCHMARKS=OFF
cmake --build "$folder" --target poslsh_unit_tests -j "$jobs"
find "$folder" -name '*.gcda' -delete # counts of an earlier run
ctest --test-dir "$folder" --no-tests=error --output-on-failure -j "$jobs" -L '^unit$'

# report OPTION...: what gcovr finds in the counts.
report() {
  gcovr --root . --object-directory "$folder" --filter 'include/poslsh/' "$@"
}
echo "== with the branches that exceptions take"
report --print-summary --output "$folder/branches.txt"
echo "== without"
mkdir -p "$folder/coverage.html"
report --exclude-throw-branches --print-summary --fail-under-line "$least" --txt "$folder/coverage.txt" \
  --csv "$folder/coverage.csv" --json "$folder/coverage.json" --html-details "$folder/coverage.html/index.html" ||
  { echo "fewer than $least % of the lines" && exit 1; }
