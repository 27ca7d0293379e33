#!/usr/bin/env bash
# Usage: tiny_lm_test.sh TINY_LM
# A smoke test of examples/torch/tiny_lm: every scheme trains, an interrupted run ends where an uninterrupted one does,
# and wrong input ends in exit code 2 and one line on stderr.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/cli.sh"
# field FILE NUMBER: that field of the file's first result.
field() { sed -n 2p "$1" | cut -d, -f"$2"; }
# near A B LARGEST
near() { awk -v a="$1" -v b="$2" -v most="$3" 'BEGIN { d = a - b; exit !(d <= most && d >= -most) }'; }

for ((i = 0; i < 3000; ++i)); do echo "$i is the number of this line."; done >text
small=(--text text --layers 1 --heads 2 --width 16 --batch 2)
train=("${small[@]}" --length 64 --steps 60 --rate 0.01 --windows 2)

# --- Every scheme learns: bytes by themselves would take more than 4 bits here.
for scheme in none rope alibi alibi-dense blocks lsh-independent-3 lsh-stratified-4 lsh-importance-3 lsh-mixture-3 lsh-mean-2; do
  accept train "${train[@]}" --folder runs --positions "$scheme"
  bits=$(field runs/$scheme-1.csv 10)
  awk -v bits="$bits" 'BEGIN { exit !(bits > 0 && bits < 4) }' || fail "$scheme: $bits bits a byte"
done
near "$(field runs/alibi-1.csv 10)" "$(field runs/alibi-dense-1.csv 10)" 0.002 || fail 'the two forms of ALiBi differ'
near "$(field runs/alibi-1.csv 10)" "$(field runs/none-1.csv 10)" 0.0001 && fail 'ALiBi is no other than none'

# --- A run that is killed goes on where it was.
long=("${small[@]}" --length 64 --steps 400 --checkpoint-every 20 --windows 2 --positions lsh-importance-4)
accept train "${long[@]}" --folder whole
"$program" train "${long[@]}" --folder parts >/dev/null 2>&1 &
for ((i = 0; i < 600; ++i)); do [[ -e parts/lsh-importance-4-1.pt ]] && break || sleep 0.02; done
kill -9 $! 2>/dev/null
wait $! 2>/dev/null
[[ -e parts/lsh-importance-4-1.csv ]] && fail 'the run was over before it could be killed'
accept train "${long[@]}" --folder parts
for run in whole parts; do cut -d, -f1-7,9- $run/lsh-importance-4-1.csv >$run.numbers; done  # all but the seconds
cmp -s whole.numbers parts.numbers || fail "a run in parts ends elsewhere: $(cat parts.numbers)"

# --- Checkpoints that are not this run's
refuse 'is the checkpoint of another run' train "${small[@]}" --length 64 --steps 61 --folder runs --positions alibi
mkdir damaged
head -c 2000 runs/alibi-1.pt >damaged/alibi-1.pt
refuse 'is not a checkpoint' train "${train[@]}" --folder damaged
cp runs/alibi-1.pt damaged
printf '\xff\xff\xff\xff\xff' | dd of=damaged/alibi-1.pt bs=1 seek=20000 conv=notrunc 2>/dev/null
refuse 'is not a checkpoint' train "${train[@]}" --folder damaged
refuse 'first train' transfer "${train[@]}" --folder nowhere --positions blocks
refuse 'first train' write-layer "${small[@]}" --folder nowhere --output x.npy
refuse 'is no folder' train "${train[@]}" --folder text

# --- A full disk, and Ctrl-C
(trap '' XFSZ; ulimit -f 10; "$program" train "${train[@]}" --folder full >out 2>err; exit $?)
(($? == 2)) && [[ $(cat err) == *'cannot be written'* && -z $(ls full) ]] || fail "a full disk: $(cat err), $(ls full)"
"$program" train "${long[@]}" --folder stopped >out 2>err &
for ((i = 0; i < 1500; ++i)); do [[ -e stopped/lsh-importance-4-1.pt ]] && break || sleep 0.02; done
kill -INT $! 2>/dev/null
wait $!
(($? == 2)) && [[ $(cat err) == *'interrupted after step'* && -e stopped/lsh-importance-4-1.pt ]] || fail "Ctrl-C: $(cat err)"

# --- Transfer, report, the layer's inputs, times
accept transfer "${train[@]}" --folder runs --positions lsh-importance-5 --tune-steps 3
[[ $(wc -l <runs/alibi-to-lsh-importance-5-1.csv) -eq 7 ]] || fail 'transfer has not 6 results'
accept report --folder runs --csv all.csv --table all.md
grep -q '^| lsh-importance-5, tuned for 3 steps |' all.md || fail "no line of the transfer: $(cat all.md)"
[[ $(wc -l <all.csv) -eq 37 ]] || fail "report has not 36 results: $(wc -l <all.csv)"
accept write-layer "${small[@]}" --length 64 --steps 60 --rate 0.01 --folder runs --tokens 100 --output qkv.npy
head -c 128 qkv.npy | grep -aq "'shape': (3, 2, 100, 8" || fail "qkv.npy has another shape: $(head -c 128 qkv.npy)"
accept time "${small[@]}" --repetitions 1
[[ $(grep -cE '^ +(512|2048) ' out) -eq 2 ]] || fail "no two times: $(cat out)"

# --- Wrong input
refuse 'subcommand' --nonsense
refuse '--nonsense' train --text text --nonsense
refuse '--text' train
refuse 'is not a file' train --text missing
: >empty
refuse "empty" train --text empty
head -c 20000 text >short
refuse 'too short' train --text short
refuse 'no positional scheme' train --text text --positions lsh-magic-3
refuse 'no positional scheme' train --text text --positions lsh-mean-0
refuse '--heads' train --text text --heads 0
refuse '--width' train --text text --width 20 --heads 4
refuse '--layer' write-layer --text text --layer 4 --output x.npy
refuse 'holds no results' report --folder nowhere
refuse 'ends neither' report --folder runs --plot picture.jpg

finish
