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
# plot NAME: leaves gnuplot's words for all curves of NAME in $plot. A title has the same colour in every figure.
declare -A colour_of=()
colours=('#1f77b4' '#d62728' '#2ca02c' '#ff7f0e' '#9467bd' '#8c564b' '#e377c2' '#17becf' '#bcbd22' '#000000' '#7f7f7f' '#00429d'
  '#73a2c6' '#93003a')
plot() {
  local title index=0
  plot=
  while read -r title; do
    title=${title//\"/}
    [[ -n ${colour_of[$title]-} ]] || colour_of[$title]=${colours[${#colour_of[@]} % ${#colours[@]}]}
    plot+="${plot:+, }'$scratch/$1' index $index using 1:2 with linespoints linewidth 1.5 pointtype 7 pointsize 0.5"
    plot+=" linecolor '${colour_of[$title]}' title '$title'"
    index=$((index + 1))
  done < <(grep '^"' "$scratch/$1")
  plot="plot ${plot:-1 notitle}"
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
plot length
length=$plot
plot memory
memory=$plot
plot crossing
draw "$figures/length.svg" 1500 620 <<PLOT
set multiplot layout 1,3
set logscale xy
set key below
set bmargin 14
set format x '%.0s%c'
set xrange [900:1200000]
set title 'time of a head: d = 64, sigma = 64, causal'
set xlabel 'tokens'
set ylabel 'ms'
$length
set title 'memory beyond inputs and output'
set ylabel 'MiB'
$memory
set title 'faster than exact attention from this length on'
set xlabel 'sigma'
set ylabel 'tokens'
set xrange [14:300]
set xtics (16, 64, 256)
$plot
unset multiplot
PLOT

colour_of=()
panels=$(jq -r '[.benchmarks[] | .name | split("/")[0]] | reduce .[] as $p ([]; if index([$p]) then . else . + [$p] end) | .[]' \
  "$data/error.json")
{
  echo "set multiplot layout 2,4"
  echo "set logscale xy
set key below font ',9'
set bmargin 9
set xlabel 'ms'
set xrange [1:1000]
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
    plot "error$number"
    echo "set title '$panel'"
    echo "$plot, '$scratch/front$number' using 1:2 with steps linewidth 3 linecolor 'gray60' title 'best'"
    number=$((number + 1))
  done <<<"$panels"
  echo "unset multiplot"
} >"$scratch/error.gp"
draw "$figures/error.svg" 1800 1150 <"$scratch/error.gp"

colour_of=()
curves threads scaling 'select(.times_faster) | [(.name | split("/")[1]), .thread_count, .times_faster]'
curves tile scaling 'select(.keys) | ["head_dim \(.head_dim)", .keys, ."GFLOP/s"]'
plot threads
threads=$plot
plot tile
draw "$figures/scaling.svg" 1100 520 <<PLOT
set multiplot layout 1,2
set key below
set bmargin 8
set title 'threads, n = 32768'
set xlabel 'threads'
set ylabel 'times faster than one'
set xrange [0.9:2.1]
set yrange [0:*]
set xtics 1
$threads
set title 'rate against the keys of a query'
set xlabel 'keys'
set ylabel 'GFLOP/s inside the window'
set xrange [*:*]
set xtics auto
set logscale x 2
$plot
unset multiplot
PLOT
