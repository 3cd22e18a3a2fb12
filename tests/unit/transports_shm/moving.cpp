#include <array>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/transport_mismatch.h"
#include "tests/support/transport_ranks.h"
#include "tests/unit/transports_shm/arena.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

namespace {

/// What member 1 gets of a buffer that member 0 overwrites once its op is started, which an op's owner may not.
float overwritten_before_it_is_read(const plugins::OpRequest& sent, const plugins::OpRequest& received,
                                    bool is_registered) {
  float got = 0;
  const std::array<Arena, 2> arenas;
  run_ranks("shm", 2, [&](Rank& rank) {
    const Arena& arena = arenas[rank.rank()];
    const std::uint64_t registration =
        is_registered ? rank.transport().register_memory(arena.data(), arena.bytes(), arena.descriptor()) : 0;
    float* const buffer = arena.data() + 500;
    *buffer = 1;
    plugins::OpRequest request = rank.rank() == 0 ? sent : received;
    request.send = request.recv = plugins::HostBuffer{buffer, 100 * sizeof(float), registration};
    auto group = rank.group();
    auto op = group.prepare({request}, after(30));
    if (rank.rank() == 0) {
      op.start(after(30));
      *buffer = 2;
    }
    rank.meet("overwritten");
    if (rank.rank() == 1) {
      op.start(after(30));
    }
    finish(op);
    if (rank.rank() == 1) {
      got = *buffer;
    }
    rank.meet("end");
  });
  return got;
}

}  // namespace

TEST_CASE("shm: registered memory is read where it lies, other memory from a copy") {
  std::vector<float> none;
  const bool is_registered = GENERATE(true, false);
  const float expected = is_registered ? 2 : 1;
  const auto broadcast = request_of(SR_OP_BROADCAST, 1, 100, none, 0);
  CHECK(overwritten_before_it_is_read(broadcast, broadcast, is_registered) == expected);
  CHECK(overwritten_before_it_is_read(request_of(SR_OP_SEND, 1, 100, none, 1), request_of(SR_OP_RECV, 1, 100, none, 0),
                                      is_registered) == expected);
}

TEST_CASE("shm: memory that is not registered is moved again and again") {
  constexpr std::uint32_t n = 3;
  const std::size_t count = GENERATE(as<std::size_t>{}, 1, 512, 513, 100'000);  // through mailboxes up to 2 KiB
  std::array<int, n> right = {};
  run_ranks("shm", n, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(count);
    auto op = group.prepare({request_of(SR_OP_ALL_REDUCE, 1, count, data)}, after(30));
    for (int round = 0; round < 20; ++round) {
      data.assign(count, static_cast<float>(round * 10 + static_cast<int>(rank.rank())));
      run(op);
      right[rank.rank()] += data == std::vector<float>(count, static_cast<float>(3 * round * 10 + 3)) ? 1 : 0;
    }
    rank.meet("end");
  });
  CHECK(right == std::array<int, n>{20, 20, 20});
}

TEST_CASE("shm: all_to_allv reads each member's block where that member has it") {
  constexpr std::uint32_t n = 3;
  // counts[i][j]: elements from member i to member j.
  constexpr std::array<std::array<std::uint64_t, n>, n> counts = {{{3, 0, 5}, {1, 4, 2}, {0, 7, 600}}};
  const auto value = [](std::uint32_t from, std::uint32_t to, std::uint64_t i) {
    return static_cast<float>(from * 10'000 + to * 1000 + i);
  };
  std::array<bool, n> right = {};
  run_ranks("shm", n, [&](Rank& rank) {
    const std::uint32_t self = rank.rank();
    auto group = rank.group();
    std::vector<float> data;
    auto request = request_of(SR_OP_ALL_TO_ALLV, 1, 0, data);
    std::vector<float> expected;
    for (std::uint32_t m = 0; m < n; ++m) {
      request.send_counts.push_back(counts[self][m]);
      request.recv_counts.push_back(counts[m][self]);
      for (std::uint64_t i = 0; i < counts[self][m]; ++i) {
        data.push_back(value(self, m, i));
      }
      for (std::uint64_t i = 0; i < counts[m][self]; ++i) {
        expected.push_back(value(m, self, i));
      }
    }
    std::vector<float> received(expected.size());
    request.send = buffer_of(data);
    request.recv = buffer_of(received);
    auto op = group.prepare({request}, after(30));
    run(op);
    right[self] = received == expected;
    rank.meet("end");
  });
  CHECK(right == std::array<bool, n>{true, true, true});
}

TEST_CASE("shm: members that mean different collectives are told both, and go on") { check_different_counts("shm"); }

TEST_CASE("shm: a member that agrees with all others is told who does not, and goes on") {
  check_different_exchange("shm", {"member 0 (rank 0", "do not mean the same op"});
}
