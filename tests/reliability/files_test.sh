#!/usr/bin/env bash
# Usage: files_test.sh BUILD_EXAMPLES_DIR [EXPERIMENT...]
# Files that our programs write, when the disk is full, the folder read-only, or the run is killed: what stands at the
# file's name is what was there before or a whole new file. A run that fails says so in one line and exits with 2. Programs
# that have not been built are left out.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
source "$root/tests/support/cli.sh"
examples=$program
shift
experiments=("$@")
if ((${#experiments[@]} == 0)); then
  for source in "$root"/examples/experiments/*.cpp; do experiments+=("$(basename "$source" .cpp)"); done
fi
chmod 755 "$folder" # for the run as another user
printf 'what was there before\n' >before
: >file # no folder
mkdir closed
chmod 555 closed
runs=0 kills=0

# gives_up LIMITS ARGUMENT...: under LIMITS, a command of bash, the run exits with 2 and one line on stderr.
gives_up() {
  local limits=$1 code error
  shift
  error=$( (trap '' XFSZ; eval "$limits"; exec "$program" "$@") 2>&1 >/dev/null) # by a pipe, which has no limit
  code=$?
  ((code == 2)) || fail "$name $*, $limits: exit code $code"
  [[ $error == "$name: "*'cannot be written'* && $error != *$'\n'* ]] || fail "$name $*, $limits: not one line: $error"
  runs=$((runs + 1))
}
# untouched FILE WHEN: it is what was there before, and nothing lies beside it.
untouched() {
  cmp -s before "$1" || fail "$name, $2: $1 is not what was there before"
  [[ ! -e $1.part ]] || fail "$name, $2: $1.part is left behind"
}

# In a mount namespace of its own, where that is allowed: a disk of 64 KB that is full, and one that is read-only.
full_disk='mount -t tmpfs -o size=64k none disk && cp before disk/out.csv && { cat /dev/zero >disk/rest; true; } 2>/dev/null'
closed_disk='mount -t tmpfs none disk && cp before disk/out.csv && mount -o remount,ro disk'
mkdir disk
# on_disk MOUNTS ARGUMENT...: the run there gives up, and what was on the disk is as before.
on_disk() {
  local mounts=$1 code
  shift
  # shellcheck disable=SC2016  # the inner bash expands it
  unshare -m bash -c "cd '$folder' && $mounts"' && { "$@" >out 2>err; code=$?; cmp -s before disk/out.csv || code=99
    [[ ! -e disk/out.csv.part ]] || code=98; exit $code; }' bash "$program" "$@"
  code=$?
  ((code == 2)) || fail "$name $*, on a disk of its own: exit code $code (99: another file, 98: a part)"
  [[ $(wc -l <err) -eq 1 && $(cat err) == "$name: disk/out.csv: cannot be written"* ]] || fail "$name $*: not one line: $(cat err)"
  runs=$((runs + 1))
}
unshare -m bash -c "cd '$folder' && mount -t tmpfs none disk" 2>/dev/null && disks=1 || disks=0

# As somebody for whom a folder is closed: ourselves, or nobody if we are root.
other=()
((EUID != 0)) || other=(setpriv --reuid=65534 --regid=65534 --clear-groups)
# closed_folder FLAG ARGUMENT...
closed_folder() {
  local flag=$1 code
  shift
  "${other[@]}" test -x "$program" 2>/dev/null || return 0 # nobody may not come that far
  "${other[@]}" "$program" "$@" "$flag" closed/out.png >out 2>err
  code=$?
  ((code == 2)) && [[ $(wc -l <err) -eq 1 && $(cat err) == *'Permission denied' && -z $(ls closed) ]] ||
    fail "$name $flag in a closed folder: exit code $code, $(cat err), $(ls closed)"
  runs=$((runs + 1))
}

# checks FLAG... -- ARGUMENT...: a small run with these arguments, which can write to the files of these flags.
checks() {
  local flags=() flag limits lines moment start end code
  while [[ $1 != -- ]]; do flags+=("$1"); shift; done
  shift
  [[ -x $program ]] || { echo "not built: $name"; return; }

  # Before any work is done: no such folder, a file for a folder, a folder for a file, a closed folder.
  for flag in "${flags[@]}"; do
    refuse 'cannot be written' "$@" "$flag" nowhere/out.png
    refuse 'cannot be written' "$@" "$flag" file/out.png
    mkdir -p folder.png
    refuse 'it is a folder' "$@" "$flag" folder.png
    closed_folder "$flag" "$@"
    runs=$((runs + 3))
  done

  # Behind it: no room for a byte, or for all but the first kilobyte; a device that is always full, by another name.
  accept "$@" --csv whole.csv
  for limits in 'ulimit -f 0' 'ulimit -f 1'; do
    [[ $limits == *0 ]] || (($(wc -c <whole.csv) > 1024)) || continue # it would fit
    cp before out.csv
    gives_up "$limits" "$@" --csv out.csv
    untouched out.csv "$limits"
  done
  if [[ -w /dev/full ]]; then
    ln -sf /dev/full link.csv
    gives_up true "$@" --csv link.csv
    [[ -L link.csv && -c /dev/full ]] || fail "$name: a link to /dev/full has been replaced"
    rm link.csv
    # What is printed may get lost too.
    for arguments in "$*" --help; do
      # shellcheck disable=SC2086  # words
      "$program" $arguments >/dev/full 2>err
      code=$?
      ((code == 2)) && [[ $(wc -l <err) -eq 1 && $(cat err) == "$name: standard output: cannot be written" ]] ||
        fail "$name $arguments >/dev/full: exit code $code, $(cat err)"
    done
    runs=$((runs + 3))
  fi
  if ((disks)); then
    on_disk "$full_disk" "$@" --csv disk/out.csv
    on_disk "$closed_disk" "$@" --csv disk/out.csv
  fi

  # Killed at ten moments from its start to a little after its end.
  lines=$(wc -l <whole.csv)
  start=${EPOCHREALTIME/[.,]/}
  "$program" "$@" --csv whole.csv >/dev/null 2>&1
  end=${EPOCHREALTIME/[.,]/}
  for ((moment = 1; moment <= 10; ++moment)); do
    cp before out.csv
    "$program" "$@" --csv out.csv >/dev/null 2>&1 &
    sleep "$(awk -v t=$(((end - start) * (moment * 11 - RANDOM % 11) / 100)) 'BEGIN { printf "%.4f", t / 1e6 }')"
    kill -9 $! 2>/dev/null
    wait $! 2>/dev/null
    cmp -s before out.csv || [[ $(wc -l <out.csv) -eq $lines && $(tail -c1 out.csv) == "" ]] ||
      fail "$name, killed: half a file of $(wc -l <out.csv) lines for $lines"
    kills=$((kills + 1))
  done
  # What a killed run may have left beside the file misleads no later one.
  printf 'half a li' >out.csv.part
  accept "$@" --csv out.csv
  [[ $(wc -l <out.csv) -eq $lines && ! -e out.csv.part ]] || fail "$name: a part that was left behind"
}

# of NAME: the program of this name, wherever it is built.
of() {
  name=$1
  program=$(find "$examples" -name "$1" -type f -perm -u+x | head -n 1)
}

of compare
checks --csv --plot --save -- --tokens 256 --heads 4 --head-dim 16 --samples 8 --repeat 1
of decode
checks --csv --plot -- --tokens 3000 --heads 4 --head-dim 8 --samples 8
for experiment in "${experiments[@]}"; do
  of "$experiment"
  checks --csv --plot -- --quick
done

# A large file, so that the kill comes while it is written.
of compare
if [[ -x $program ]]; then
  large=(--tokens 20000 --heads 2 --head-dim 64 --methods one_sweep --samples 1 --repeat 1)
  "$program" "${large[@]}" --save whole.npy >/dev/null 2>&1 &
  for ((i = 0; i < 2000; ++i)); do [[ -e whole.npy ]] && break || sleep 0.01; done
  kill -9 $! 2>/dev/null
  wait $! 2>/dev/null
  for ((round = 0; round < 10; ++round)); do
    cp before saved.npy
    "$program" "${large[@]}" --save saved.npy >/dev/null 2>&1 &
    for ((i = 0; i < 20000; ++i)); do [[ ! -s saved.npy.part ]] || break; done # it is being written now
    sleep "0.00$((RANDOM % 10))"
    kill -9 $! 2>/dev/null
    wait $! 2>/dev/null
    cmp -s before saved.npy || cmp -s whole.npy saved.npy || fail "compare, killed: half of saved.npy, $(wc -c <saved.npy) bytes"
    kills=$((kills + 1))
  done
  for limits in 'ulimit -f 0' 'ulimit -f 100'; do
    cp before saved.npy
    gives_up "$limits" "${large[@]}" --save saved.npy
    untouched saved.npy "$limits"
  done
fi

# Training: a checkpoint is what a later run trusts.
of tiny_lm
if [[ -x $program ]]; then
  for ((i = 0; i < 3000; ++i)); do echo "$i is the number of this line."; done >text
  small=(--text text --layers 1 --heads 2 --width 16 --batch 2 --length 64 --windows 2 --positions lsh-importance-4)
  train=("${small[@]}" --steps 60 --checkpoint-every 1)
  refuse 'cannot be' train "${train[@]}" --folder file/runs
  accept train "${train[@]}" --folder whole
  for ((round = 0; round < 10; ++round)); do # each goes on from what the one before has left
    "$program" train "${train[@]}" --folder parts >out 2>err &
    sleep "0.$((RANDOM % 900 + 100))"
    kill -9 $! 2>/dev/null
    wait $! 2>/dev/null
    kills=$((kills + 1))
  done
  accept train "${train[@]}" --folder parts
  for run in whole parts; do cut -d, -f1-7,9- $run/lsh-importance-4-1.csv >$run.numbers; done # all but the seconds
  cmp -s whole.numbers parts.numbers || fail "training that was killed ten times ends elsewhere: $(cat parts.numbers)"
else
  echo 'not built: tiny_lm'
fi

printf '%d runs that cannot write, %d killed, disks of their own: %d\n' "$runs" "$kills" "$disks"
((runs + kills > 0)) || fail 'no program has been built'
finish
