#!/usr/bin/env bash
# Usage: decode_cli_test.sh DECODE
# The command line of examples/decode: a wrong flag ends in exit code 2 and one line on stderr; what is right runs, and
# its numbers are what they must be.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/cli.sh"

# --- Flags
refuse '--nonsense' --nonsense
refuse 'extra' extra
refuse '--methods' --methods magic
refuse '--sampling' --sampling magic
refuse '--storage' --storage int8
refuse 'ends neither in .png nor in .svg' --plot picture.jpg
for flag in tokens heads head-dim samples threads full-mib; do
  for value in 0 -1 x 1.5 0x4 99999999999999999999; do refuse "--$flag" --"$flag" "$value"; done
done
for value in -1 x 1.5 0x4 18446744073709551616; do refuse '--seed' --seed "$value"; done
for value in 0 -1 x nan 2; do refuse '--tolerance' --tolerance "$value"; done
for value in 0 -1 x nan inf; do refuse '--max-query-norm' --max-query-norm "$value"; done
for value in -1 x nan; do refuse '--full-seconds' --full-seconds "$value"; done
for flag in csv plot; do refuse 'cannot be written' --"$flag" nowhere/file.png; done

accept --help
for flag in methods tokens heads head-dim samples sampling tolerance max-query-norm full-seconds full-mib storage seed \
  threads csv plot; do
  grep -q -- "--$flag" out || fail "--help does not name --$flag"
done

# --- Runs
small=(--tokens 2000 --heads 4 --head-dim 8 --samples 8)
accept "${small[@]}" --csv first.csv
[[ $(wc -l <first.csv) -eq $((3 * 12 + 1)) ]] || fail "first.csv has $(wc -l <first.csv) lines"
accept "${small[@]}" --csv second.csv --threads 2
numbers() { cut -d, -f1,6,9-11 "$1"; } # all that times do not touch
diff <(numbers first.csv) <(numbers second.csv) || fail "two threads give other results"

# full keeps everything; bounded and mean_mask do not, one right to rounding, one an estimate.
awk -F, '
  NR == 1 { next }
  $1 == "full" && $9 != 4 * $6 { print "full has not kept everything: " $0; bad = 1 }
  $1 == "bounded" && !($11 < 1e-5) { print "bounded is off: " $0; bad = 1 }
  $1 == "mean_mask" && !($11 > 1e-3 && $11 < 1) { print "mean_mask is no estimate: " $0; bad = 1 }
  $6 == 2000 { cached[$1] = $9; bytes[$1] = $10 }
  END { exit bad || !(cached["bounded"] < 8000 && cached["mean_mask"] < 4000 && bytes["mean_mask"] <= bytes["full"]) }' \
  first.csv || fail "first.csv"

# A limit ends full, and nothing else; bounded then serves as what mean_mask is held against.
accept --tokens 30000 --heads 4 --head-dim 8 --methods full,mean_mask,bounded --full-mib 1 --csv limit.csv
awk -F, '
  NR == 1 { next }
  { last[$1] = $6 }
  $1 == "mean_mask" && $11 == "" { print "no error: " $0; bad = 1 }
  END { exit bad || !(last["full"] < 30000 && last["bounded"] == 30000 && last["mean_mask"] == 30000) }' \
  limit.csv || fail "limit.csv"
accept "${small[@]}" --full-seconds 0 --methods full
accept "${small[@]}" --methods mean_mask --csv alone.csv
awk -F, 'NR > 1 && $11 != "" { exit 1 }' alone.csv || fail "an error against nothing"
accept --tokens 1 --heads 1 --head-dim 1 --samples 1 --max-query-norm 1e-9

# A number is decimal, with or without zeros in front.
accept --tokens 100 --heads 4 --head-dim 8 --samples 8 --seed 10 --csv plain.csv
accept --tokens 0100 --heads 04 --head-dim 08 --samples 08 --seed 010 --csv zeros.csv
diff <(numbers plain.csv) <(numbers zeros.csv) || fail "zeros in front change a number"

# Caches of 16 bits take half the bytes.
accept "${small[@]}" --methods mean_mask --storage bfloat16 --csv bfloat16.csv
accept "${small[@]}" --methods mean_mask --storage half --csv half.csv
for storage in bfloat16 half; do
  paste -d, alone.csv $storage.csv | awk -F, 'NR > 1 && $10 != 2 * $21 { exit 1 }' || fail "bytes in $storage"
done

if command -v gnuplot >/dev/null; then
  for picture in picture.png picture.svg; do
    accept "${small[@]}" --plot $picture
    [[ -s $picture ]] || fail "no $picture"
  done
fi
PATH='' "$program" "${small[@]}" --plot without.png >out 2>err || fail "no gnuplot: exit code $?"
[[ $(cat err) == *'gnuplot is not installed' && ! -e without.png ]] || fail "no gnuplot: $(cat err)"

finish
