#include "core/bench/statistics.h"

#include <shardrun/transport.h>

#include <numeric>

#include "tests/support/catch.h"

using namespace shardrun::bench;

TEST_CASE("p99 of iterations", "[bench]") {
  CHECK(p99({1, 7, 2}) == 7);
  std::vector<double> hundred(100);
  std::iota(hundred.rbegin(), hundred.rend(), 1.0);
  CHECK(p99(hundred) == 99);
  std::vector<double> thousand(1000);
  std::iota(thousand.begin(), thousand.end(), 1.0);
  CHECK(p99(thousand) == 990);
}

TEST_CASE("each iteration takes as long as its slowest rank", "[bench]") {
  const std::vector<std::vector<double>> of_ranks = {{1, 9, 3}, {2, 1, 3}, {0, 5, 4}};
  CHECK(slowest(of_ranks) == std::vector<double>{2, 9, 4});
}

TEST_CASE("bus bandwidth has the factor of each collective", "[bench]") {
  CHECK(bus_factor(SR_OP_ALL_REDUCE, 2) == 1);
  CHECK(bus_factor(SR_OP_ALL_REDUCE, 8) == 1.75);
  for (const std::uint32_t opcode : {SR_OP_ALL_GATHER, SR_OP_ALL_GATHERV, SR_OP_REDUCE_SCATTER, SR_OP_REDUCE_SCATTERV,
                                     SR_OP_ALL_TO_ALL, SR_OP_ALL_TO_ALLV, SR_OP_GATHER, SR_OP_SCATTER}) {
    CHECK(bus_factor(opcode, 4) == 0.75);
  }
  for (const std::uint32_t opcode : {SR_OP_BROADCAST, SR_OP_REDUCE, SR_OP_SEND}) {
    CHECK(bus_factor(opcode, 4) == 1);
  }
  CHECK(bus_factor(SR_OP_BARRIER, 4) == 0);
}
