#!/usr/bin/env bash
# The quick example of the README is examples/quick_start.cpp, which is compiled and run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck disable=SC2016  # back ticks of Markdown
diff <(sed -n '/^```cpp$/,/^```$/{/^```/!p}' README.md) <(tail -n +2 examples/quick_start.cpp) && echo "the same"
