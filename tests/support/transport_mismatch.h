#pragma once

#include <array>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/transport_ranks.h"

namespace shardrun::test {

/// What each of three members is told that prepare what `request_of_rank` gives, which is not the same on all; and the
/// sums of ones that the same group adds up afterwards.
struct Refusals {
  std::array<std::string, 3> errors;
  std::array<float, 3> sums = {};
};

template <class RequestOfRank>
Refusals refusals(const std::string& transport, RequestOfRank request_of_rank) {
  Refusals told;
  run_ranks(transport, 3, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(100'000, 1.0F);
    std::vector<float> received(10);
    const plugins::OpRequest request = request_of_rank(rank.rank(), data, received);
    told.errors[rank.rank()] = error_of([&] { (void)group.prepare({request}, after(30)); });
    auto op = group.prepare({request_of(SR_OP_ALL_REDUCE, 2, 100'000, data)}, after(30));
    run(op);
    told.sums[rank.rank()] = data.back();
    rank.meet("end");
  });
  return told;
}

/// The third member adds up fewer elements than the others.
inline void check_different_counts(const std::string& transport) {
  const Refusals told = refusals(transport, [](std::uint32_t rank, std::vector<float>& data, std::vector<float>&) {
    return request_of(SR_OP_ALL_REDUCE, 1, rank == 2 ? 70'000 : 100'000, data);
  });
  for (const std::string& error : told.errors) {
    CHECK_THAT(error,
               Catch::Contains("all_reduce (sum) of 100000 f32") && Catch::Contains("all_reduce (sum) of 70000 f32"));
  }
  CHECK(told.sums == std::array<float, 3>{3, 3, 3});
}

/// The first two members mean different things for each other; the third is told so in the words `to_third`.
inline void check_different_exchange(const std::string& transport, const std::vector<std::string>& to_third) {
  const Refusals told =
      refusals(transport, [](std::uint32_t rank, std::vector<float>& data, std::vector<float>& received) {
        plugins::OpRequest request = request_of(SR_OP_ALL_TO_ALLV, 1, 0, data);
        request.recv = buffer_of(received);
        request.send_counts = request.recv_counts = {1, 1, 1};
        request.send_counts[1] = rank == 0 ? 2 : 1;
        return request;
      });
  CHECK_THAT(told.errors[0], Catch::Contains("member 1 has all_to_allv") &&
                                 Catch::Contains("exchange 2 and 1 elements on the one side"));
  CHECK_THAT(told.errors[1], Catch::Contains("member 0 has all_to_allv") && Catch::Contains("1 and 2 on the other"));
  for (const std::string& words : to_third) {
    CHECK_THAT(told.errors[2], Catch::Contains(words));
  }
  CHECK(told.sums == std::array<float, 3>{3, 3, 3});
}

}  // namespace shardrun::test
