#!/usr/bin/env bash
# Usage: compare_cli_test.sh COMPARE
# The command line of examples/compare: whatever is wrong with a file or a flag ends in exit code 2 and one line on
# stderr that says what; what is right runs.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/cli.sh"

# bytes NUMBER WIDTH: little-endian.
bytes() {
  local i
  for ((i = 0; i < $2; ++i)); do printf '%b' "\\x$(printf %02x $(($1 >> 8 * i & 255)))"; done
}

# npy VERSION HEADER VALUE_BYTES: a file of zeros, on stdout.
npy() {
  printf '\x93NUMPY%b\0' "\\x0$1"
  bytes $((${#2} + 1)) $(($1 == 1 ? 2 : 4))
  printf '%s\n' "$2"
  head -c "$3" /dev/zero
}

# header SHAPE [TYPE [FORTRAN]]
header() { printf "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }" "${2-<f4}" "${3-False}" "$1"; }

shape='(3, 2, 4, 5)' # 120 values

# --- Files that are right
npy 1 "$(header "$shape")" 480 >good.npy
npy 2 "$(header "$shape")" 480 >good2.npy
npy 3 "$(header "$shape" '<f8')" 960 >good3.npy
for file in good.npy good2.npy good3.npy; do accept --input $file --samples 2; done
grep -q '2 heads x 4 tokens x 5 features, double' out || fail "a float64 file is not read as such"

# --- Files that are wrong
refuse 'does not exist' --input missing.npy
refuse 'not a regular file' --input .
refuse 'two lines.npy' --input $'two\nlines.npy'
: >empty.npy
refuse 'ends inside the header' --input empty.npy
printf 'PK\3\4 this is a zip archive' >zip.npy
refuse 'not a .npy file' --input zip.npy
npy 4 "$(header "$shape")" 480 >version.npy
refuse 'version 4.0' --input version.npy
head -c 40 good.npy >cut_header.npy
refuse 'ends inside the header' --input cut_header.npy
head -c -1 good.npy >cut.npy
refuse 'truncated' --input cut.npy
{ cat good.npy; printf x; } >long.npy
refuse 'trailing bytes' --input long.npy
npy 1 "$(header "$shape" '>f4')" 480 >big_endian.npy
refuse 'another type' --input big_endian.npy
npy 1 "$(header "$shape" '<i4')" 480 >integers.npy
refuse 'another type' --input integers.npy
npy 1 "$(header "$shape" '<f4' True)" 480 >fortran.npy
refuse 'Fortran order' --input fortran.npy
{ printf '\x93NUMPY\2\0'; bytes 4294967295 4; } >long_header.npy
refuse 'header is too long' --input long_header.npy

# Finite, but products of them are not: 0x7f60 is the upper half of 3e38 in float.
{ npy 1 "$(header "$shape")" 0; for ((i = 0; i < 120; ++i)); do printf '\0\0\x60\x7f'; done; } >huge.npy
refuse 'so large that scores or sums overflow' --input huge.npy --samples 2

number=0
# malformed WORDS HEADER
malformed() {
  number=$((number + 1))
  npy 1 "$2" 480 >malformed$number.npy
  refuse "$1" --input malformed$number.npy
}
malformed 'malformed' ''
malformed 'malformed' "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2, 4, 5)"
malformed 'malformed' "{'descr': '<f4"
malformed 'malformed' "{'descr' '<f4'}"
malformed 'neither True nor False' "$(header "$shape" '<f4' maybe)"
malformed 'no tuple' "$(header '(3, -2, 4, 5)')"
malformed 'no tuple' "$(header '(120)')"
malformed 'no tuple' "$(header '(3 2 4 5)')"
malformed 'no tuple' "$(header '(3, 2, 4, 5')"
malformed 'no tuple' "$(header '(3, 2, 4, 99999999999999999999)')"
malformed 'more than 32 dimensions' "$(header "($(printf '1, %.0s' {1..33}))")"
malformed 'lacks' "{'descr': '<f4', 'shape': $shape, }"
malformed 'unknown or repeated' "{'descr': '<f4', 'descr': '<f4', }"
malformed 'unknown or repeated' "{'size': 3, }"
malformed 'goes on' "$(header "$shape") + 1"

# shaped WORDS SHAPE VALUE_BYTES
shaped() {
  npy 1 "$(header "$2")" "$3" >shaped.npy
  refuse "$1" --input shaped.npy
}
shaped 'too large' '(3, 4294967296, 4294967296, 4294967296)' 0
shaped 'truncated' '(3, 1048576, 1048576, 1024)' 0
shaped 'has the shape' '(120,)' 480
shaped 'has the shape' '()' 4
shaped 'has the shape 2 x 3 x 4 x 5' '(2, 3, 4, 5)' 480
shaped 'has the shape' '(3, 2, 4, 5, 1)' 480
shaped 'has the shape' '(3, 0, 4, 5)' 0
shaped 'has the shape' '(3, 2, 0, 5)' 0
shaped 'has the shape' '(3, 2, 4, 0)' 0

# poison VALUE WORDS: writes four bytes over the last value.
poison() {
  cp good.npy poisoned.npy
  printf '%b' "$1" | dd of=poisoned.npy bs=1 seek=$(($(wc -c <good.npy) - 4)) conv=notrunc status=none
  refuse "$2" --input poisoned.npy
}
poison '\x00\x00\xc0\x7f' 'value 119 is NaN'
poison '\x00\x00\x80\xff' 'value 119 is infinite'

# --- Flags
small=(--tokens 8 --head-dim 2 --heads 2)
refuse 'give --input FILE or --tokens N'
refuse '--nonsense' "${small[@]}" --nonsense
refuse 'extra' "${small[@]}" extra
refuse '--input excludes --tokens' "${small[@]}" --input good.npy
refuse '--heads requires --tokens' --input good.npy --heads 2
refuse '--slopes excludes --sigma' "${small[@]}" --sigma 16 --slopes 1,2
refuse '3 slopes for 2 heads' "${small[@]}" --slopes 1,0.5,0.25
refuse '--methods' "${small[@]}" --methods magic
refuse '--sampling' "${small[@]}" --sampling magic
refuse 'ends neither in .png nor in .svg' "${small[@]}" --plot picture.jpg
refuse 'none of the methods draws' "${small[@]}" --methods exact,no_bias --plot picture.png
refuse 'too large' --tokens 16777216 --heads 65536 --head-dim 65536
for value in 0 -1 1.5 x '' nan 1000001 99999999999999999999 1,0; do
  refuse '--samples' "${small[@]}" --samples "$value"
done
for flag in tokens head-dim heads threads repeat seeds; do
  for value in 0 -1 x 0x4 99999999999999999999; do refuse "--$flag" --tokens 8 --"$flag" "$value"; done
done
for value in -1 x 1.5 0x4 18446744073709551616; do refuse '--seed' "${small[@]}" --seed "$value"; done
for flag in sigma slopes; do
  for value in 0 -16 x nan inf 1e999 16,-1; do refuse "--$flag" "${small[@]}" --"$flag" "$value"; done
  refuse 'inverse overflows' "${small[@]}" --"$flag" 1e-320
done

# --- Files that cannot be written: said before any work is done, nothing is left behind
mkdir taken.csv
for flag in csv plot save; do
  refuse 'cannot be written' "${small[@]}" --"$flag" nowhere/file.png
  refuse 'cannot be written' "${small[@]}" --"$flag" good.npy/file.png
done
refuse 'it is a folder' "${small[@]}" --csv taken.csv

# --- Runs
accept --help
for flag in input tokens head-dim heads slopes sigma causal methods samples sampling seed seeds repeat threads csv plot save
do
  grep -q -- "--$flag" out || fail "--help does not name --$flag"
done

run=(--sigma "4,16" --samples "2,8" --sampling "independent,importance" --seeds 3 --repeat 1 --causal)
accept --tokens 64 --head-dim 5 --heads 3 "${run[@]}" --csv first.csv --save saved.npy
grep -q 'all heads, sigma 16' out || fail "no table for sigma 16"
# 3 methods without draws, 3 with 2 x 2 each; 3 heads and all of them; 2 sigmas; a heading.
[[ $(wc -l <first.csv) -eq $(((3 + 3 * 4) * 4 * 2 + 1)) ]] || fail "first.csv has $(wc -l <first.csv) lines"
accept --input saved.npy "${run[@]}" --csv second.csv --threads 2
measures() { cut -d, -f9-13,16-20 "$1"; } # head to samples, errors and keys: all that times do not touch
diff <(measures first.csv) <(measures second.csv) || fail "a saved file gives other results, or two threads do"

# The relative error of exact attention is rounding; the same draws in one sweep and block by block agree.
awk -F, '
  NR == 1 { next }
  $11 == "exact" && !($16 < 1e-6) { print "exact attention is off: " $0; bad = 1 }
  $11 == "one_sweep" { sweep[$9, $10, $12, $13] = $16 }
  $11 == "blocks_ratio" && !((d = $16 - sweep[$9, $10, $12, $13]) < 1e-5 && d > -1e-5) { print "the two forms differ: " $0; bad = 1 }
  END { exit bad }' first.csv || fail "first.csv"

accept --tokens 1 --head-dim 1 --heads 1 --samples 1
# A number is decimal, with or without zeros in front.
accept --tokens 010 --head-dim 03 --heads 02 --samples 09 --seed 010
grep -q '2 heads x 10 tokens x 3 features' out || fail "--tokens 010 is not 10 tokens"
accept --tokens 1100 --head-dim 5 --heads 1 --sigma 16 --samples 8 --repeat 1 # many key tiles before and after a query
accept --tokens 64 --head-dim 5 --per-head --heads 2
[[ $(grep -c '^head [01]' out) -eq 2 ]] || fail "--per-head prints no table for each head"
if command -v gnuplot >/dev/null; then
  for picture in picture.png picture.svg; do
    accept --tokens 64 --head-dim 5 --heads 2 --samples 2,8 --plot $picture
    [[ -s $picture ]] || fail "no $picture"
  done
fi
PATH='' "$program" --tokens 8 --heads 1 --samples 2 --plot without.png >out 2>err || fail "no gnuplot: exit code $?"
[[ $(cat err) == *'gnuplot is not installed' && ! -e without.png ]] || fail "no gnuplot: $(cat err)"

# A run that is interrupted leaves no half file.
"$program" --tokens 2048 --samples 1000 --repeat 3 --csv half.csv --plot half.png >/dev/null 2>&1 &
sleep 0.3
kill $!
wait $! 2>/dev/null
code=$?
((code == 143)) || fail "a run could not be interrupted: exit code $code"

# --- Files that are not for writing over
small=(--tokens 8 --heads 1 --samples 2 --methods one_sweep)
if [[ -w /dev/full ]]; then
  "$program" "${small[@]}" --csv /dev/full >out 2>err  # its table has been printed by then
  (($? == 2)) && [[ $(cat err) == *'/dev/full: cannot be written'* ]] || fail "/dev/full: $(cat err)"
  [[ -c /dev/full ]] || fail '/dev/full is no device any more'
fi
accept "${small[@]}" --csv /dev/null
[[ -c /dev/null ]] || fail '/dev/null is no device any more'
refuse 'named twice' "${small[@]}" --csv a.png --plot a.png
refuse 'named twice' "${small[@]}" --csv ./a.png --plot a.png
refuse 'named twice' "${small[@]}" --csv a.png --plot "$PWD/a.png"
refuse 'a file must have a name' "${small[@]}" --csv ''
refuse 'a file must have a name' "${small[@]}" --plot ''
refuse 'a file must have a name' "${small[@]}" --save ''
refuse 'named twice' --input good.npy --save ./good.npy
(trap '' XFSZ; ulimit -f 4; "$program" "${small[@]}" --plot full.png >out 2>err; exit $?)
(($? == 2)) && [[ ! -e full.png && ! -e full.png.part ]] && [[ $(cat err) == *'gnuplot could not draw it'* ]] || fail "a picture on a full disk: $(cat err)"

leftovers=$(find . -name 'half*' -o -name '*.part')
[[ -z $leftovers ]] || fail "left behind: $leftovers"

finish
