#!/usr/bin/env bash
# Every ```cpp block of README.md and docs/*.md is a whole program that compiles without a warning and exits with 0.
# One marked ```cpp nocompile is left out.
# Usage: docs_code_test.sh EIGEN_INCLUDE_FOLDER [ROOT]; the compiler is $CXX, by default c++
set -euo pipefail

eigen=$1
root=$(cd "${2-$(dirname "${BASH_SOURCE[0]}")/../..}" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# One file a block, named after its page and line, in the order of the pages.
cd "$root"
awk -v scratch="$scratch" '
  function unfinished() { if (file != "") { print page ": a block without an end" > "/dev/stderr"; failed = 1 } }
  FNR == 1 { unfinished(); file = ""; inside = 0; page = FILENAME }
  !inside && /^[ \t]*```/ {
    inside = 1
    sub(/^[ \t]*```[ \t]*/, "")
    if ($0 == "cpp") {
      name = page
      gsub("/", "_", name)
      file = sprintf("%s/%03d-%s-%d.cpp", scratch, ++count, name, FNR)
      printf "#line %d \"%s\"\n", FNR + 1, page > file
    } else if ($0 ~ /^(c\+\+|C\+\+|cxx|cc|hpp)/ || ($0 ~ /^cpp/ && $0 != "cpp nocompile")) {
      printf "%s:%d: neither ```cpp nor ```cpp nocompile: %s\n", page, FNR, $0 > "/dev/stderr"
      failed = 1
    }
    next
  }
  inside && /^[ \t]*```[ \t]*$/ { inside = 0; if (file != "") close(file); file = ""; next }
  file != "" { print > file }
  END { unfinished(); exit failed }' README.md docs/*.md

failed=0
count=0
for source in "$scratch"/*.cpp; do
  [[ -e $source ]] || break
  block=$(basename "$source" .cpp)
  count=$((count + 1))
  if ! "${CXX:-c++}" -std=c++20 -O0 -Wall -Wextra -Werror -I include -isystem "$eigen" -pthread "$source" \
    -o "$scratch/program"; then
    echo "does not compile: $block"
    failed=$((failed + 1))
  elif ! (cd "$scratch" && ./program); then
    echo "does not exit with 0: $block"
    failed=$((failed + 1))
  else
    echo "good: $block"
  fi
done
echo "$count blocks, $failed failed"
((count > 0 && failed == 0))
