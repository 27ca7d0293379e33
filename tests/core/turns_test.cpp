// SPDX-License-Identifier: MIT
#include "poslsh/core/turns.hpp"

#include "poslsh/core/parallel.hpp"
#include "support/catch.hpp"
#include "support/random_matrix.hpp"

#include <thread>
#include <vector>

namespace turns_test {

using poslsh::Index;
using poslsh::detail::parallel_for;
using poslsh::detail::Turns;

TEST_CASE("Places are changed in the order of the tasks, whichever take part") {
  poslsh::test::Dice dice(1);
  for (int round = 0; round < 30; ++round) {
    const Index tasks = 1 + dice.below(60), places = 1 + dice.below(6);
    const double share = dice.pick({0.1, 0.5, 1.0});
    std::vector<std::vector<Index>> visits(static_cast<std::size_t>(tasks)), expected(static_cast<std::size_t>(places));
    Turns turns(places);
    for (Index task = 0; task < tasks; ++task)
      for (Index place = 0; place < places; ++place) {
        if (!dice.chance(share)) continue;
        visits[static_cast<std::size_t>(task)].push_back(place);
        expected[static_cast<std::size_t>(place)].push_back(task);
        turns.expect(place, task);
      }
    std::vector<std::vector<Index>> got(static_cast<std::size_t>(places));
    parallel_for(tasks, 4, [&](Index task, int) {
      for (const Index place : visits[static_cast<std::size_t>(task)]) {
        if (task % 3 == 0) std::this_thread::yield();
        if (!turns.wait(place, task)) return;
        got[static_cast<std::size_t>(place)].push_back(task);
        turns.pass(place, task);
      }
    });
    REQUIRE(got == expected);
  }
}

TEST_CASE("A task that gives up lets the others end") {
  Turns turns(1);
  const Index tasks = 8;
  for (Index task = 0; task < tasks; ++task) turns.expect(0, task);
  std::vector<Index> done;
  parallel_for(tasks, 4, [&](Index task, int) {
    if (!turns.wait(0, task)) return;
    done.push_back(task);
    if (task == 2)
      turns.give_up();
    else
      turns.pass(0, task);
  });
  REQUIRE(done == std::vector<Index>{0, 1, 2});
}

}  // namespace turns_test
