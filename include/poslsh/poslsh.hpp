// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// All of poslsh but theory/spectral.hpp, which needs Spectra.

#include "poslsh/attention/attention.hpp"
#include "poslsh/attention/bias.hpp"
#include "poslsh/attention/bias_rows.hpp"
#include "poslsh/attention/blockwise.hpp"
#include "poslsh/attention/key_groups.hpp"
#include "poslsh/attention/mean_mask_rows.hpp"
#include "poslsh/attention/micro_kernel.hpp"
#include "poslsh/attention/options.hpp"
#include "poslsh/attention/packing.hpp"
#include "poslsh/attention/simd.hpp"
#include "poslsh/attention/skipping.hpp"
#include "poslsh/attention/softmax.hpp"
#include "poslsh/attention/tile_sweep.hpp"
#include "poslsh/attention/weights.hpp"
#include "poslsh/core/buffer.hpp"
#include "poslsh/core/config.hpp"
#include "poslsh/core/math.hpp"
#include "poslsh/core/parallel.hpp"
#include "poslsh/core/random.hpp"
#include "poslsh/core/strided.hpp"
#include "poslsh/core/types.hpp"
#include "poslsh/mask/block_mask.hpp"
#include "poslsh/mask/mean_mask.hpp"
#include "poslsh/position/alibi.hpp"
#include "poslsh/position/hash.hpp"
#include "poslsh/position/kernel.hpp"
