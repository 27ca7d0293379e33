#!/usr/bin/env bash
# Fails where a compilation takes too long. Its own CPU seconds count, and the least of three tries: what else runs on the
# machine only adds to them.
# Usage: compile_time.sh MOST_SECONDS COMPILER ARGUMENT...
set -euo pipefail

most=$1
shift
exec 3>&2  # the compiler's messages; what else goes to stderr below is the time
TIMEFORMAT=%U
for ((try = 0; try < 3; ++try)); do
  seconds=$({ time "$@" >&3 2>&3; } 2>&1)
  echo "$seconds s of CPU time, of $most allowed: $*"
  if awk -v seconds="$seconds" -v most="$most" 'BEGIN { exit !(seconds > 0 && seconds < most) }'; then exit 0; fi
done
exit 1
