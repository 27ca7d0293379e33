// SPDX-License-Identifier: MIT
// Built without exceptions and run-time types: bad input reaches the user's POSLSH_FAIL, with its message.

#include <string>

[[noreturn]] void on_failure(const std::string& message);
#define POSLSH_FAIL(message) on_failure(message)

#include "poslsh/poslsh.hpp"

#include <cstdio>
#include <cstdlib>

void on_failure(const std::string& message) {
  std::puts(message.c_str());
  const bool told = message.starts_with("poslsh: ") && message.find("threads") != std::string::npos;
  std::exit(told ? EXIT_SUCCESS : EXIT_FAILURE);
}

int main() {
  using namespace poslsh;
  const Matrix<float> q = Matrix<float>::Ones(8, 4);
  AttentionOptions options;
  const auto output = attention(q, q, q, AlibiBias{0.5}, options);
  if (!(std::abs(output.values(7, 3) - 1.0f) < 1e-5f)) return EXIT_FAILURE;

  options.threads = 0;
  (void)attention(q, q, q, AlibiBias{0.5}, options);
  return EXIT_FAILURE;  // not reached: the call above must fail
}
