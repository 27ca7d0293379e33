#!/usr/bin/env bash
# Builds and runs every benchmark, and draws the figures of docs/benchmarks.md.
#   bash bench/run.sh            the whole set, some 15 minutes on 2 idle cores; writes docs/data/bench and docs/figures
#   bash bench/run.sh --quick    small sizes, a minute: shows that all this works; writes build/bench/results
#   bash bench/run.sh --quick --built FOLDER    the same with what has been built there; writes FOLDER/bench/results
# For each benchmark NAME.txt (as printed), NAME.json and NAME.csv, with machine, compiler, flags and commit.
# Exit code 1 if a benchmark fails, as it does when an error leaves its range.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tests/support/packages.sh
need g++ cmake make libeigen3-dev libbenchmark-dev libopenblas-dev jq gnuplot-nox

build=build data=docs/data/bench figures=docs/figures arguments=()
[[ ${1-} == --quick && ${2-} == --built && -d ${3-} ]] && build=$3
if [[ ${1-} == --quick && ($# -eq 1 || $build == "${3-}") ]]; then
  data=$build/bench/results figures=$data arguments=(--benchmark_min_time=0.001)
  export POSLSH_BENCH_QUICK=1
elif (($#)); then
  echo "usage: bash bench/run.sh [--quick [--built FOLDER]]" >&2
  exit 2
fi
names=(methods error scaling kernel million model decode backward peers)
mkdir -p "$data" "$figures"
if [[ $build == build ]]; then
  torch=OFF
  [[ -n $(find /usr -name TorchConfig.cmake -print -quit 2>/dev/null) ]] && torch=ON
  cmake -S . -B build -DPOSLSH_TORCH=$torch >/dev/null
  cmake --build build -j "$(nproc)" --target "${names[@]/%/_bench}" >/dev/null
fi

POSLSH_BENCH_COMMIT=$(git describe --always --dirty 2>/dev/null || echo unknown)
export POSLSH_BENCH_COMMIT
# PyTorch takes no AVX-512 by itself.
grep -qw avx512f /proc/cpuinfo && export ATEN_CPU_CAPABILITY=avx512
failed=()
for name in "${names[@]}"; do
  printf '== %s\n' "$name"
  # On one thread each, and without settings that keep OpenBLAS from its best kernels.
  env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE "$build/bench/${name}_bench" "${arguments[@]}" \
    --benchmark_out="$data/$name.json.part" --benchmark_out_format=json 2>&1 | tee "$data/$name.txt" || failed+=("$name")
  # Less what tells nothing of the figures.
  jq 'del(.context.host_name, .context.executable, .context.load_avg)
      | .benchmarks |= map(del(.family_index, .per_family_instance_index, .run_name, .run_type, .repetitions,
                               .repetition_index, .threads, .iterations))' "$data/$name.json.part" >"$data/$name.json"
  rm "$data/$name.json.part"
  jq -e 'all(.benchmarks[]; .error_occurred | not)' "$data/$name.json" >/dev/null || failed+=("$name")
  # The context as comments, then a column for each counter.
  jq -r '(.context | to_entries[] | select(.value | type != "object" and type != "array") | "# \(.key): \(.value)"),
         ((.benchmarks | map(keys_unsorted) | add | unique - ["name"]) as $columns
          | (["name"] + $columns), (.benchmarks[] | [.name] + [.[$columns[]]]) | @csv)' "$data/$name.json" >"$data/$name.csv"
done

bash bench/figures.sh "$data" "$figures"
if ((${#failed[@]})); then
  printf 'FAILED: %s\n' "${failed[*]}" >&2
  exit 1
fi
