# Turns error_tables.csv into Markdown: see error_tables.sh.
# Columns: input causal head sigma method sampling samples seeds error error_deviation row_error keys block_keys.
BEGIN { FS = "," }
NR == 1 { next }
{
  cell = $1 FS $3 FS $4 FS $2
  if (!(cell in known)) { known[cell] = 1; cells[++cell_count] = cell }
  if ($5 == "exact") { next }
  how = $5 == "blocks_mean" ? "mean merge, " $6 : $6
  if (!(how in order)) { order[how] = 1; hows[++how_count] = how }
  error[cell, how, $7] = $9
  keys[cell, how, $7] = $12
  block_keys[cell, how, $7] = $13
  seeds[how] = $8
  if (!($7 in seen)) { seen[$7] = 1; samples[++sample_count] = $7 }
}
# The slope of a straight line through log error against log draws, by least squares.
function exponent(cell, how,    i, x, y, n, sx, sy, sxx, sxy) {
  for (i = 1; i <= sample_count; ++i) {
    x = log(samples[i]); y = log(error[cell, how, samples[i]])
    ++n; sx += x; sy += y; sxx += x * x; sxy += x * y
  }
  return (n * sxy - sx * sy) / (n * sxx - sx * sx)
}
function verdict(holds) { return holds ? "holds" : "**missed**" }
END {
  printf "\nRelative error ||T* - T||_F / ||T*||_F against exact ALiBi attention in double, as a mean over %d seeds;\n",
    seeds["independent"]
  printf "the draws merged as a ratio of sums or, with %d seeds and where it says so, as a mean of outputs. Exponent: of s,\n",
    seeds["mean merge, independent"]
  print "fitted over all s. Keys: scored for each query at s = 256, in one sweep over all draws and block by block.\n"

  worst = 0; worst_text = 0; level_low = 9; level_high = 0; straight = 1
  for (c = 1; c <= cell_count; ++c) {
    cell = cells[c]; split(cell, part, FS)
    ratio = error[cell, "importance", 256] / error[cell, "independent", 256]
    if (ratio > worst) { worst = ratio; worst_cell = cell }
    if (part[1] == "text" && part[3] < 256 && ratio > worst_text) { worst_text = ratio; worst_text_cell = cell }
    level = error[cell, "mean merge, independent", 512] / error[cell, "mean merge, independent", 128]
    if (level < level_low) { level_low = level }
    if (level > level_high) { level_high = level }
    if (part[1] == "text" && part[2] == 0 && part[3] < 256) {
      fall = exponent(cell, "independent")
      straight = straight && fall >= -0.65 && fall <= -0.35
      falls = falls sprintf("%s%.2f (sigma %d%s)", falls ? ", " : "", fall, part[3], part[4] ? ", causal" : "")
    }
  }
  print "## Expectations\n"
  printf "- Importance at s = 256 at most 0.60 of independent everywhere: %s; worst %.2f (%s).\n",
    verdict(worst <= 0.60), worst, name(worst_cell)
  printf "- At most 0.35 on the text heads at sigma 16 and 64: %s; worst %.2f (%s).\n",
    verdict(worst_text <= 0.35), worst_text, name(worst_text_cell)
  printf "- Independent on text head 0 at sigma 16 and 64 falls as s^(-0.5 +- 0.15): %s; exponents %s.\n",
    verdict(straight), falls
  printf "- The mean merge levels off: its error at s = 512 is %.2f to %.2f of that at s = 128; independent draws under\n  the ratio merge would come to 0.50 at s^-0.5.\n", level_low, level_high

  print "\n## Every head\n"
  printf "| input | head | sigma | causal | draws |"
  for (i = 1; i <= sample_count; ++i) printf " s = %d |", samples[i]
  print " exponent | keys, sweep | keys, blocks |"
  printf "|---|---|---|---|---|"
  for (i = 1; i <= sample_count + 3; ++i) printf "---:|"
  print ""
  for (c = 1; c <= cell_count; ++c) {
    cell = cells[c]; split(cell, part, FS)
    for (h = 1; h <= how_count; ++h) {
      how = hows[h]
      printf "| %s | %s | %s | %s | %s |", part[1], part[2], part[3], part[4] ? "yes" : "no", how
      for (i = 1; i <= sample_count; ++i) printf " %.4f |", error[cell, how, samples[i]]
      printf " %.2f | %s | %.0f |\n", exponent(cell, how),
        how ~ /mean/ ? "" : sprintf("%.0f", keys[cell, how, 256]), block_keys[cell, how, 256]
    }
  }
}
function name(cell,    part) {
  split(cell, part, FS)
  return part[1] " head " part[2] ", sigma " part[3] (part[4] ? ", causal" : "")
}
