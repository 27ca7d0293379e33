#!/usr/bin/env bash
# Shows that layers.sh accepts a small good tree and rejects, for the right reason, each way to spoil it.
# Usage: layers_test.sh SCRATCH_FOLDER
set -euo pipefail

script=$(dirname "${BASH_SOURCE[0]}")/layers.sh
tree=$1/poslsh
wrong=0

# header NAME LINE...: writes one header.
header() {
  mkdir -p "$(dirname "$tree/$1")"
  printf '%s\n' '// SPDX-License-Identifier: MIT' '#pragma once' "${@:2}" >"$tree/$1.hpp"
}
good_tree() {
  rm -rf "$tree"
  header core/config '#include <Eigen/Core>' '#define POSLSH_VERSION_MAJOR 0'
  header core/types '#include "poslsh/core/config.hpp"' '// std::normal_distribution is not used'
  header mask/block_mask '#include "poslsh/core/types.hpp"'
  header attention/bias '#include "poslsh/mask/block_mask.hpp"'
  header attention/options '#include "poslsh/attention/bias.hpp"'
  header theory/spectral '#include "poslsh/mask/block_mask.hpp"' '#include <Eigen/Eigenvalues>' \
    '#include <Spectra/SymEigsSolver.h>'
  header poslsh '' '/// All' '#include "poslsh/core/config.hpp"' '#include "poslsh/core/types.hpp"' \
    '#include "poslsh/mask/block_mask.hpp"' '#include "poslsh/attention/bias.hpp"' \
    '#include "poslsh/attention/options.hpp"'
}
# rejects MESSAGE: the tree as it stands must be refused with exactly this one message; then a good one again.
rejects() {
  local output
  if output=$(bash "$script" "$1" 2>&1); then
    echo "accepted, but should say: $2"
    wrong=1
  elif [[ $output != *"$2"* || $(wc -l <<<"$output") != 1 ]]; then
    printf 'should say: %s\nsays:       %s\n' "$2" "$output"
    wrong=1
  else
    echo "rejected: $output"
  fi
  good_tree
}
# line NAME LINE MESSAGE: with this line added to a header, the tree must be rejected.
line() {
  echo "$2" >>"$tree/$1.hpp"
  rejects "${tree%/poslsh}" "$3"
}

good_tree
bash "$script" "$1"

line core/types '#include "poslsh/mask/block_mask.hpp"' 'types.hpp:5: core may not include mask'
line attention/bias '# include <poslsh/theory/spectral.hpp>' 'attention may not include theory'
line theory/spectral '#include "poslsh/attention/bias.hpp"' 'theory may not include attention'
line attention/bias '#include "poslsh/attention/options.hpp"' 'may not include a later header of its folder'
line attention/bias '#include "poslsh/attention/bias.hpp"' 'may not include a later header of its folder'
line attention/bias '#include "poslsh/poslsh.hpp"' 'attention may not include poslsh: poslsh/poslsh.hpp'
line attention/bias '#include "options.hpp"' 'are included as "poslsh/..."'
line core/types '#include <Eigen/Dense>' 'only <Eigen/Core> may be included'
line core/types '#include <unsupported/Eigen/FFT>' 'only <Eigen/Core> may be included'
line mask/block_mask '#include <Spectra/SymEigsSolver.h>' 'only theory/spectral.hpp may include Spectra'
line core/types '#define CHECK(x) x' 'a macro must start with POSLSH_: CHECK(x)'
line core/types '  #  define POSLSHX 1' 'a macro must start with POSLSH_: POSLSHX'
line core/types 'std::normal_distribution<double> normal;' 'std distributions differ'
line core/types '#pragma omp parallel for' 'not OpenMP'
line core/types '_Pragma("omp simd")' 'not OpenMP'
line core/types 'return std::max(a, (std::min)(b, c));' 'write (std::min)(a, b)'
line core/types 'return std::numeric_limits<double>::min ();' 'write (std::min)(a, b)'
line poslsh '#include "poslsh/theory/spectral.hpp"' 'the umbrella may not need Spectra'
line poslsh 'int x;' 'the umbrella holds includes only'

header core/extra
sed -i '$a #include "poslsh/core/extra.hpp"' "$tree/poslsh.hpp"
rejects "$1" 'not in the list of headers'
sed -i '/options/d' "$tree/poslsh.hpp"
rejects "$1" 'the umbrella lacks poslsh/attention/options.hpp'
sed -i 1d "$tree/mask/block_mask.hpp"
sed -i '1i // Copyright' "$tree/mask/block_mask.hpp"
rejects "$1" 'line 1 must be // SPDX-License-Identifier: MIT'
sed -i '2s/.*/#ifndef BLOCK_MASK_HPP/' "$tree/mask/block_mask.hpp"
rejects "$1" 'line 2 must be #pragma once'

exit $wrong
