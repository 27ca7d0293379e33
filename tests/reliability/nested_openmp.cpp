// SPDX-License-Identifier: MIT

// Calls from inside an OpenMP region, and outside one in a program that Eigen may use OpenMP in: the same bits, and the
// settings of OpenMP and Eigen as they were. Compiled with OpenMP; without, it is skipped (exit code 77).

#include <cstdio>

#ifdef _OPENMP
#include "reliability/entry_points.hpp"

#include <omp.h>

#include <cstddef>

int main() {
  using namespace poslsh::test;
  const EntryPoints entries(150, 600);  // the certificate's products are large enough for Eigen to share them out
  const std::vector<EntryPoint> calls = entries.all();
  std::vector<std::uint64_t> expected;
  Eigen::setNbThreads(1);
  for (const EntryPoint& call : calls) expected.push_back(call.run(1));

  int failures = 0;
  const auto check = [&](bool holds, const char* what, const std::string& name) {
    if (holds) return;
#pragma omp critical
    std::printf("FAILED: %s: %s\n", what, name.c_str()), ++failures;
  };
  const int calls_to_make = static_cast<int>(calls.size());
  for (const int levels : {1, 2}) {
    omp_set_max_active_levels(levels);
    omp_set_num_threads(3);
    Eigen::setNbThreads(2);
    const auto check_settings = [&](const std::string& name) {
      check(omp_get_max_threads() == 3 && omp_get_max_active_levels() == levels && omp_get_num_threads() == 1,
            "other settings of OpenMP", name);
      check(Eigen::nbThreads() == 2, "another number of threads for Eigen", name);
    };
    for (const int threads : {1, 2}) {
      for (std::size_t i = 0; i < calls.size(); ++i) {
        check(calls[i].run(threads) == expected[i], "other bits outside a region", calls[i].name);
        check_settings(calls[i].name);
      }
#pragma omp parallel for num_threads(3) schedule(dynamic)
      for (int i = 0; i < 2 * calls_to_make; ++i) {
        const std::size_t call = static_cast<std::size_t>(i / 2);  // so that two of a kind run at the same time
        check(calls[call].run(threads) == expected[call], "other bits inside a region", calls[call].name);
      }
      check_settings("a region");
    }
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
#else
int main() {
  std::puts("skipped: compiled without OpenMP");
  return 77;
}
#endif
