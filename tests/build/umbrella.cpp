// SPDX-License-Identifier: MIT
#include "poslsh/poslsh.hpp"
