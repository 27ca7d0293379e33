#!/usr/bin/env bash
# Draws the figures of docs/benchmarks.md from the JSON files of bench/run.sh.
# Usage: figures.sh DATA_FOLDER FIGURE_FOLDER
set -euo pipefail
data=$1 figures=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# curves NAME FILE FILTER: FILTER turns the benchmarks of FILE.json into [title, x, y] each; curves are left for gnuplot in
# $scratch/NAME, a block each with its title in the first line, in the order of their first points.
curves() {
  jq -r "[.benchmarks[] | select(.error_occurred | not) | $3 | select(.[1] != null and .[2] != null and .[2] > 0)]
         | reduce .[] as \$p ([]; if any(.[]; .[0][0] == \$p[0]) then map(if .[0][0] == \$p[0] then . + [\$p] else . end)
                                 else . + [[\$p]] end)
         | .[] | \"\\\"\" + .[0][0] + \"\\\"\", (.[] | \"\\(.[1]) \\(.[2])\"), \"\", \"\"" "$data/$2.json" >"$scratch/$1"
}
# plot NAME: gnuplot's words for all curves of NAME.
plot() {
  local count
  count=$(grep -c '^"' "$scratch/$1" || true)
  if ((count == 0)); then
    echo "plot NaN notitle"
  else
    echo "plot for [i=0:$((count - 1))] '$scratch/$1' index i using 1:2 with linespoints linewidth 1.5 pointsize 0.5 title columnheader(1)"
  fi
}
# draw FILE WIDTH HEIGHT <SCRIPT
draw() {
  { printf "set terminal svg size %d,%d noenhanced font 'sans,12' background 'white'\nset output '%s.part'\nset grid\n" "$2" "$3" "$1"; cat; } |
    gnuplot
  mv "$1.part" "$1"
}

curves length methods 'select(.n) | [(.name | split("/")[0]), .n, .real_time]'
curves memory methods 'select(.n) | [(.name | split("/")[0]), .n, ([.scratch_MiB, 0.1] | max)]'
curves crossing methods 'select(.crossing_n) | [(.name | split("/")[1]), .sigma, .crossing_n]'
draw "$figures/length.svg" 1500 620 <<PLOT
set multiplot layout 1,3
set logscale xy
set key below
set format x '%.0s%c'
set title 'time of a head: d = 64, sigma = 64, causal'
set xlabel 'tokens'
set ylabel 'ms'
$(plot length)
set title 'memory beyond inputs and output'
set ylabel 'MiB'
$(plot memory)
set title 'faster than exact attention from this length on'
set xlabel 'sigma'
set ylabel 'tokens'
$(plot crossing)
unset multiplot
PLOT

panels=$(jq -r '[.benchmarks[] | .name | split("/")[0]] | reduce .[] as $p ([]; if index([$p]) then . else . + [$p] end) | .[]' \
  "$data/error.json")
{
  echo "set multiplot layout 2,4"
  echo "set logscale xy
set key below font ',9'
set xlabel 'ms'
set ylabel 'relative error'
set yrange [1e-7:3]
set format y '%.0e'"
  number=0
  while read -r panel; do
    curves "error$number" error "select(.name | startswith(\"$panel/\")) | [(.name | split(\"/\")[1]), .real_time, .error]"
    # The front: what no other point beats in both.
    jq -r --arg panel "$panel/" '[.benchmarks[] | select((.name | startswith($panel)) and (.error_occurred | not)) | [.real_time, .error]]
      | sort | reduce .[] as $p ([]; if length == 0 or $p[1] < .[-1][1] then . + [$p] else . end) | .[] | "\(.[0]) \(.[1])"' \
      "$data/error.json" >"$scratch/front$number"
    echo "set title '$panel'"
    echo "$(plot "error$number"), '$scratch/front$number' using 1:2 with steps linewidth 3 linecolor 'gray60' title 'best'"
    number=$((number + 1))
  done <<<"$panels"
  echo "unset multiplot"
} | draw "$figures/error.svg" 1800 1150

curves threads scaling 'select(.times_faster) | [(.name | split("/")[1]), .threads, .times_faster]'
curves tile scaling 'select(.keys) | ["head_dim \(.head_dim)", .keys, ."GFLOP/s"]'
draw "$figures/scaling.svg" 1100 520 <<PLOT
set multiplot layout 1,2
set key below
set title 'threads, n = 32768'
set xlabel 'threads'
set ylabel 'times faster than one'
set xrange [0.9:*]
set yrange [0:*]
set xtics 1
$(plot threads)
set title 'rate against the keys of a query'
set xlabel 'keys'
set ylabel 'GFLOP/s inside the window'
set xrange [*:*]
set xtics auto
set logscale x 2
$(plot tile)
unset multiplot
PLOT
