#!/usr/bin/env bash
# Fuzzes for FUZZ_SECONDS (60) by FUZZ_SEED (1; 0 for another one each time), from a corpus that is left as it is; what is
# found new stays in the folder FOUND, and so does an input that breaks something. CORPUS.dict, if there is one, holds words to try.
# Usage: run.sh PROGRAM CORPUS FOUND
set -euo pipefail
program=$1 corpus=$2 found=$3
mkdir -p "$found/corpus" "$found/broken"
arguments=(-max_total_time="${FUZZ_SECONDS:-60}" -seed="${FUZZ_SEED:-1}" -artifact_prefix="$found/broken/" -timeout=60 -rss_limit_mb=3000
  -print_final_stats=1 -verbosity=1)
folders=("$found/corpus")
[[ -d $corpus ]] && folders+=("$corpus")
[[ -f $corpus.dict ]] && arguments+=(-dict="$corpus.dict")
exec "$program" "${arguments[@]}" "${folders[@]}"
