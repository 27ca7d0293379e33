#!/usr/bin/env bash
# Static analysis by shellcheck, cppcheck, clang-tidy and include-what-you-use. Exit code 1 on any finding: nothing here is
# advice. What may stay is listed with its reason in .clang-tidy, below, or beside the line.
# Usage: bash tests/build/static.sh [--quick]
#   --quick  in less than a minute: headers as they stand, and scripts; without the instantiation of every entry point,
#            examples, benchmarks and include-what-you-use
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
source tests/support/packages.sh

case "${1-}" in
  "") quick=no ;;
  --quick) quick=yes ;;
  *) echo "usage: bash tests/build/static.sh [--quick]" >&2 && exit 2 ;;
esac
jobs=${POSLSH_JOBS:-$(nproc)}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
bad=0

need clang-tidy cppcheck shellcheck libeigen3-dev libspectra-dev
[[ $quick == yes ]] || need iwyu libbenchmark-dev libcli11-dev

mapfile -t headers < <(find include -name '*.hpp' | sort)
# Without those on PyTorch, whose headers take longer than all else here.
mapfile -t programs < <(find examples/*/ -name '*.cpp' ! -path 'examples/torch/*' ! -path 'examples/consumer/*' | sort)
mapfile -t loose_programs < <(find bench examples/*.cpp examples/consumer tests/build -name '*.cpp' | sort)
mapfile -t scripts < <(find .ci bench examples tests -type f \( -name '*.sh' -o -path '.ci/*' \) | sort)
include=(-Iinclude '-DPOSLSH_BENCH_FLAGS=""' '-DPOSLSH_EXAMPLE_DATA=""')
compile=(-std=c++20 -isystem /usr/include/eigen3 "${include[@]}")

# report TOOL STATUS: what the tool wrote to $scratch/TOOL, each finding once however many units met it, and how many there
# are. A finding starts with FILE:LINE: and goes on to the next; a tool that fails without one counts as well.
report() {
  local count
  sed "s|$PWD/||g" "$scratch/$1" | awk '
    /^[0-9]+ warnings?( and [0-9]+ errors?)? (generated|treated)/ { next }
    /^[^ :]+:[0-9]+:([0-9]+:)? / { known = seen[$0]++ }
    !known' >"$scratch/$1.once"
  count=$(grep -E '^[^ :]+:[0-9]+:([0-9]+:)? ' "$scratch/$1.once" | grep -vc ' note: .*[^]]$')
  if ((count > 0 || $2 != 0)); then
    bad=1
    cat "$scratch/$1.once"
  fi
  printf '%-21s %4d s  exit code %d, %d findings\n' "$1" $((SECONDS - begin)) "$2" "$count"
  begin=$SECONDS
}

# each COMMAND... FILE ...: the command on each of the names on stdin, several at once; what they write stays apart.
each() {
  local parts status
  parts=$(mktemp -d -p "$scratch")
  # shellcheck disable=SC2016  # the arguments of the inner bash
  xargs -0 -P "$jobs" -I FILE bash -c '"$@" >"$(mktemp "$0/XXXXXX")" 2>&1' "$parts" "$@"
  status=$?
  cat "$parts"/*
  return "$status"
}

# Eigen is not given, only what the preprocessor asks of it: to read it would take hours. Left out, and why:
#   uninitMemberVar in bias_rows.hpp  bias_ is set: it takes one specialisation for the other
with_cppcheck() {
  cppcheck -q -j "$jobs" --error-exitcode=1 --enable=warning,performance,portability --inline-suppr --std=c++20 \
    --language=c++ --template=gcc "${include[@]}" '-DEIGEN_VERSION_AT_LEAST(a,b,c)=1' -DEIGEN_ALWAYS_INLINE=inline \
    -D__cpp_exceptions=1 -D__GNUC__=12 --suppress=uninitMemberVar:include/poslsh/attention/bias_rows.hpp "$@"
}

# with_clang_tidy CHECKS FILE...: .clang-tidy's checks and these.
with_clang_tidy() {
  local checks=$1
  shift
  printf '%s\0' "$@" | each clang-tidy --quiet --config-file=.clang-tidy --checks="$checks" FILE -- "${compile[@]}"
}
# Left out in benchmarks, the examples of a page and build checks: what they throw may end them; `for (auto _ : state)` is how Google
# Benchmark counts, and what it registers it keeps.
loose=-bugprone-exception-escape,-clang-analyzer-deadcode.DeadStores,-clang-analyzer-cplusplus.NewDeleteLeaks

# brings FILE HEADER: whether a header, or one of this library that it includes, includes HEADER.
brings() {
  local -A seen=()
  local queue=("$1") file
  while ((${#queue[@]} > 0)); do
    file=${queue[0]}
    queue=("${queue[@]:1}")
    [[ -z ${seen[$file]-} ]] || continue
    seen[$file]=yes
    grep -qF "#include $2" "$file" && return
    mapfile -t -O "${#queue[@]}" queue < <(sed -nE 's|^#include "(poslsh/[^"]*)".*|include/\1|p' "$file")
  done
  return 1
}

# Standard headers that a header uses and neither it nor a header of this library below it includes: Eigen and other
# standard libraries need not bring them along. The rest of what include-what-you-use says is not asked for: it sees
# neither specialisations nor names that depend on template parameters, and takes away what those need; and a header may
# rely on what the layers below it include. Nor allocator_traits, which are a container's own affair, nor addressof, which
# it looks for in <utility>.
with_iwyu() {
  local file header name
  echo '[{ "include": ["@[\"<](Eigen/)?src/.*", "private", "<Eigen/Core>", "public"] }]' >"$scratch/iwyu.imp"
  printf '%s\0' "$@" |
    each include-what-you-use -Xiwyu --mapping_file="$scratch/iwyu.imp" -Xiwyu --no_fwd_decls "${compile[@]}" -x c++ FILE |
    awk '/ error: / { print }
      / should (add|remove) these lines:$/ { file = / add / ? $1 : "" }
      file != "" && $2 ~ /^<[a-z_]+>$/ && $5 !~ /^(allocator_traits|addressof)/ { print file, $2, $5 }' |
    while read -r file header name; do
      if [[ $file == *: ]]; then
        echo "$file $header $name"
      elif ! brings "$file" "$header"; then
        echo "$file:1: missing: #include $header, for $name"
      fi
    done
}

begin=$SECONDS
# SC2015: "A && B || fail" is meant: it fails where either does.
shellcheck -x -P SCRIPTDIR -P . -f gcc -e SC2015 "${scripts[@]}" >"$scratch/shellcheck" 2>&1
report shellcheck $?
units=("${programs[@]}" "${loose_programs[@]}")
[[ $quick == yes ]] && units=()
with_cppcheck "${headers[@]}" "${units[@]}" >"$scratch/cppcheck" 2>&1
report cppcheck $?
if [[ $quick == yes ]]; then
  printf '#include "%s"\n' poslsh/poslsh.hpp poslsh/theory/spectral.hpp >"$scratch/headers.cpp"
  programs=("$scratch/headers.cpp")
fi
with_clang_tidy '' "${programs[@]}" >"$scratch/clang-tidy" 2>&1
report clang-tidy $?
if [[ $quick == no ]]; then
  with_clang_tidy $loose "${loose_programs[@]}" >"$scratch/clang-tidy-loose" 2>&1
  report clang-tidy-loose $?
  with_iwyu "${headers[@]}" >"$scratch/include-what-you-use" 2>&1
  report include-what-you-use $?
fi
exit "$bad"
