#!/usr/bin/env bash
# Usage: experiments_cli_test.sh EXPERIMENTS_FOLDER
# The command lines of the experiments: what is out of range ends in exit code 2 and one line that says what.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/cli.sh"
folder_of_programs=$program

# of NAME: the program that is asked next.
of() {
  name=$1
  program=$folder_of_programs/$1
}

for each in uniformity designs block_sizes output_error matrix_norms million_positions heavy_tail embeddings pictures; do
  of $each
  refuse "'-1' is not a number from 0 to 2^64 - 1" --seed -1
  refuse "'99999999999999999999' is not" --seed 99999999999999999999
  refuse "'0' is not a number from 1 to 1024" --threads 0
  refuse 'is named twice' --csv same.png --plot same.png
  refuse 'is named twice' --csv ./same.png --plot same.png
  refuse 'a file must have a name' --csv ''
done
for each in uniformity designs block_sizes output_error million_positions; do
  of $each
  for number in 0 -3 nan inf x; do refuse 'is not a positive finite number' --sigma $number; done
done
of uniformity
refuse "'nan' is not a positive finite number" --score-bounds nan
of designs
refuse "'15' is not a number from 16 to 65536" --samples 15
of block_sizes
refuse 'is named twice' --csv same.csv --cost-csv same.csv
accept --quick --seed 010 --csv ten.csv
for each in uniformity output_error; do
  of $each
  refuse 'is named twice' --input same.npy --csv same.npy
done
of designs
refuse 'is named twice' other.npy same.npy --csv same.npy
of output_error
accept --quick --csv named.csv
grep -q '^text 0,' named.csv || fail 'heads are named after their file'
finish
