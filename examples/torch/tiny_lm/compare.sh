#!/usr/bin/env bash
# The whole comparison of docs/experiments.md: ten schemes from scratch and eleven transfers, three seeds each, one
# run a core. Interrupted, it goes on where it was.
#   bash examples/torch/tiny_lm/compare.sh PROGRAM FOLDER [TEXT]
# TEXT: the file to learn from; else the King James Bible, printed by Debian's bible-kjv.
set -euo pipefail
program=$(realpath "$1") folder=$2
mkdir -p "$folder"
text=${3-$folder/kjv.txt}
if (($# < 3)) && [[ ! -s $text ]]; then
  source "$(dirname "${BASH_SOURCE[0]}")/../../../tests/support/packages.sh"
  need bible-kjv bible-kjv-text
  bible -f 'gen1:1-rev22:21' >"$text.part"
  mv "$text.part" "$text"
fi

schemes=(alibi none rope blocks)
targets=(alibi blocks)
for s in 10 20; do schemes+=("lsh-independent-$s" "lsh-importance-$s" "lsh-mean-$s"); done
for s in 5 10 20 50; do targets+=("lsh-independent-$s" "lsh-importance-$s"); done
targets+=(lsh-mean-20)

# run TASK SCHEME...: each scheme with each seed; what has results already is left out.
run() {
  local task=$1 prefix='' seed scheme
  shift
  [[ $task == transfer ]] && prefix=alibi-to-
  # shellcheck disable=SC2016  # the arguments of the inner bash
  for seed in 1 2 3; do
    for scheme; do
      [[ -e $folder/$prefix$scheme-$seed.csv ]] || echo "$scheme $seed"
    done
  done | xargs -r -P "${POSLSH_JOBS:-$(nproc)}" -L 1 bash -c \
    'exec "$0" "$1" --text "$2" --folder "$3" --steps 700 --windows 100 --positions "$4" --seed "$5"' "$program" "$task" "$text" "$folder"
}
run train "${schemes[@]}"
run transfer "${targets[@]}"
mkdir -p "$folder/report"
"$program" report --folder "$folder" --csv "$folder/report/tiny_lm.csv" --table "$folder/report/tiny_lm.md" \
  --plot "$folder/report/tiny_lm.svg"
