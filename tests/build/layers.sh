#!/usr/bin/env bash
# Checks what headers include and define. Usage: layers.sh INCLUDE_FOLDER
#
# A header may include what stands before it in this list, of the layers its own may see. A new header goes here.
set -euo pipefail

headers="
core/config core/types core/math core/random core/parallel core/turns core/buffer core/strided
position/alibi position/kernel position/hash
mask/block_cursor mask/block_mask mask/mean_mask
theory/bounds theory/output_bounds theory/operators theory/spectral
attention/bias attention/kernel_bias attention/options attention/softmax attention/simd attention/storage attention/micro_kernel attention/packing
attention/weights attention/key_groups attention/skipping attention/bias_rows attention/weight_steps attention/mean_mask_rows
attention/query_tile attention/head attention/tile_sweep attention/attention attention/blockwise attention/certificate
attention/column_kernel attention/backward_head attention/backward_tile attention/backward_sweep attention/backward
attention/blockwise_backward
model/tensor_view model/multi_head model/multi_head_backward model/key_value_cache model/key_budget model/state_stream model/streaming_state
model/stream_head model/streaming
poslsh
"
sees="
core: core
position: core position
mask: core position mask
theory: core position mask theory
attention: core position mask attention
model: core position mask attention model
poslsh: core position mask theory attention model
"

cd "$1/poslsh"
# shellcheck disable=SC2016  # awk's own names
find . -type f | sort | sed 's|^\./||' | xargs awk -v headers="$headers" -v sees="$sees" '
function fail(message) { print "include/poslsh/" FILENAME ":" FNR ": " message; failed = 1 }
function layer(name) { sub("/.*", "", name); return name }

BEGIN {
  count = split(headers, names)
  for (i = 1; i <= count; ++i) rank[names[i]] = i
  count = split(sees, rows, "\n")
  for (i = 1; i <= count; ++i) {
    words = split(rows[i], word)
    for (j = 2; j <= words; ++j) { from = word[1]; sub(":", "", from); visible[from, word[j]] = 1 }
  }
}

FNR == 1 {
  self = FILENAME
  sub("[.]hpp$", "", self)
  spectral = (self == "theory/spectral")
  seen[self] = 1
  if (!rank[self]) fail("not in the list of headers: add it, in its place, to tests/build/layers.sh")
  if ($0 != "// SPDX-License-Identifier: MIT") fail("line 1 must be // SPDX-License-Identifier: MIT")
}
FNR == 2 && $0 != "#pragma once" { fail("line 2 must be #pragma once") }

{ sub("//.*", "") }  # comments may say what they like

/^[ \t]*#[ \t]*include/ {
  target = $0
  sub("^[^<\"]*", "", target)
  quoted = (target ~ /^"/)
  gsub("[<>\"[:space:]]", "", target)
  if (target ~ "^poslsh/") {
    name = target
    sub("^poslsh/", "", name)
    sub("[.]hpp$", "", name)
    included[self, name] = 1
    if (!visible[layer(self), layer(name)])
      fail(layer(self) " may not include " layer(name) ": " target)
    else if (layer(self) == layer(name) && rank[self] && rank[name] >= rank[self])
      fail("may not include a later header of its folder: " target)
  } else if (quoted) {
    fail("headers of this library are included as \"poslsh/...\": " target)
  } else if (target ~ "^(unsupported/)?Eigen/" && target != "Eigen/Core" && !spectral) {
    fail("of Eigen, only <Eigen/Core> may be included: " target)
  } else if (target ~ "^Spectra/" && !spectral) {
    fail("only theory/spectral.hpp may include Spectra: " target)
  }
  next
}
/^[ \t]*#[ \t]*define/ {
  name = $0
  sub("^[ \t]*#[ \t]*define[ \t]+", "", name)
  if (name !~ /^POSLSH_/) fail("a macro must start with POSLSH_: " name)
}
/std::[a-z_]*_distribution/ { fail("std distributions differ between platforms") }
/#[ \t]*pragma[ \t]+omp|_Pragma[ \t]*\([ \t]*"omp/ { fail("threads come from core/parallel.hpp, not OpenMP") }
/(^|[^A-Za-z0-9_])(min|max)[ \t]*\(/ { fail("a macro may be called min or max: write (std::min)(a, b)") }
self == "poslsh" && FNR > 2 && /[^ \t]/ { fail("the umbrella holds includes only") }

END {
  FILENAME = "poslsh.hpp"
  FNR = 1
  for (name in seen)
    if (name != "poslsh" && name != "theory/spectral" && !included["poslsh", name])
      fail("the umbrella lacks poslsh/" name ".hpp")
  if (included["poslsh", "theory/spectral"]) fail("the umbrella may not need Spectra: poslsh/theory/spectral.hpp")
  if (!seen["poslsh"]) fail("no such file")
  exit failed
}'
