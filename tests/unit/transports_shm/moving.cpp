#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/processes.h"
#include "tests/support/transport_ranks.h"
#include "tests/unit/transports_shm/arena.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

namespace {

constexpr std::uint64_t large = 10'000;

/// What member 1 gets of a buffer that member 0 overwrites once its op is started. The owner of an op may not do that.
float overwritten_before_it_is_read(const sdk::OpSpec& sent, const sdk::OpSpec& received, bool is_registered) {
  float got = 0;
  const std::array<Arena, 2> arenas;
  run_ranks("shm", 2, [&](Rank& rank) {
    const Arena& arena = arenas[rank.rank()];
    const std::uint64_t registration =
        is_registered ? rank.transport().register_memory(arena.data(), arena.bytes(), arena.descriptor()) : 0;
    float* const buffer = arena.data() + (large + 100 - sent.count);
    *buffer = 1;
    sdk::OpSpec request = rank.rank() == 0 ? sent : received;
    request.flags = SR_OP_FLAG_BLOCKING;  // what is done at the start is done in the caller's thread
    request.send = request.recv = sdk::Buffer{buffer, sent.count * sizeof(float), registration};
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

TEST_CASE("shm: an op that waits for another member says for how long its caller yielded") {
  std::atomic<pid_t> waiting = 0;
  std::optional<sdk::OpTimes> times;
  run_ranks("shm", 2, [&](Rank& rank) {
    std::vector<float> data(1);
    sdk::OpSpec request = request_of(SR_OP_ALL_REDUCE, 1, 1, data);
    request.flags = SR_OP_FLAG_BLOCKING;
    auto group = rank.group();
    auto op = group.prepare({request}, after(30));
    rank.meet("prepared");
    if (rank.rank() == 0) {
      waiting = gettid();
    } else {
      while (waiting == 0 || state_of(waiting) != 'S') {  // it sleeps once it has yielded for long enough
      }
    }
    op.start(after(30));
    finish(op);
    if (rank.rank() == 0) {
      times = op.times();
    }
    rank.meet("end");
  });
  REQUIRE(times);
  CHECK(times->yielded > 0);
  CHECK(times->yielded <= times->ended - times->begun);
}

TEST_CASE("shm: long registered memory is read in place, and other memory from a copy") {
  std::vector<float> none;
  const bool is_registered = GENERATE(true, false);
  const std::uint64_t count = GENERATE(as<std::uint64_t>{}, 100, large);
  const auto broadcast = request_of(SR_OP_BROADCAST, 1, count, none, 0);
  CHECK(overwritten_before_it_is_read(broadcast, broadcast, is_registered) ==
        (is_registered && count == large ? 2 : 1));
  // A long message that cannot be mapped is copied when its receiver asks for it.
  CHECK(overwritten_before_it_is_read(request_of(SR_OP_SEND, 1, count, none, 1),
                                      request_of(SR_OP_RECV, 1, count, none, 0),
                                      is_registered) == (count == large ? 2 : 1));
}

TEST_CASE("shm: memory that is not registered can be moved repeatedly") {
  constexpr std::uint32_t n = 3;
  const std::size_t count = GENERATE(as<std::size_t>{}, 1, 256, 257, 100'000);  // in one piece, and in several
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

TEST_CASE("shm: all_to_allv reads each block at its place in the sender's buffer") {
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

TEST_CASE("shm: a blocking batch keeps its place among batches that do not block") {
  constexpr int rounds = 200;
  int wrong = 0;
  run_ranks("shm", 2, [&](Rank& rank) {
    auto group = rank.group();
    const std::uint32_t opcode = rank.rank() == 0 ? SR_OP_SEND : SR_OP_RECV;
    std::array<std::vector<float>, 4> data;
    std::vector<plugins::TransportOp> ops;
    // All messages have one id: what is sent first is received first, whichever thread carries it out.
    for (std::size_t i = 0; i < data.size(); ++i) {
      data[i].resize(i == 2 ? 20'000 : 3);
      auto request = request_of(opcode, 1, data[i].size(), data[i], 1 - rank.rank());
      request.flags = i % 2 == 0 ? SR_OP_FLAG_BLOCKING : 0;
      ops.push_back(group.prepare({request}, after(30)));
    }
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < data.size(); ++i) {
        const bool sends = rank.rank() == 0;
        data[i].assign(data[i].size(), sends ? static_cast<float>(round * 10 + static_cast<int>(i)) : -1);
        ops[i].start(after(30));
      }
      for (std::size_t i = data.size(); i-- > 0;) {
        finish(ops[i]);
      }
      for (std::size_t i = 0; rank.rank() == 1 && i < data.size(); ++i) {
        const std::vector<float> sent(data[i].size(), static_cast<float>(round * 10 + static_cast<int>(i)));
        wrong += data[i] == sent ? 0 : 1;
      }
    }
    rank.meet("end");
  });
  CHECK(wrong == 0);
}

TEST_CASE("shm: memory that cannot be mapped moves in pieces, both ways at once, beside mapped memory") {
  std::array<int, 3> wrong = {};
  const std::array<Arena, 3> arenas;
  run_ranks("shm", 3, [&](Rank& rank) {
    const std::uint32_t self = rank.rank();
    const Arena& arena = arenas[self];
    const std::uint64_t registration =
        rank.transport().register_memory(arena.data(), arena.bytes(), arena.descriptor());
    auto group = rank.group();
    // Each member sends to each of the others two messages of one id in pieces, and one that is mapped.
    std::vector<std::vector<float>> sent(3, std::vector<float>(70'000));
    std::vector<std::vector<float>> received(9, std::vector<float>(70'000));
    std::vector<sdk::OpSpec> requests;
    for (std::uint32_t turn = 1; turn < 3; ++turn) {
      const std::uint32_t peer = (self + turn) % 3;
      for (std::size_t i = 0; i < 2; ++i) {
        requests.push_back(request_of(SR_OP_SEND, 5, 70'000, sent[i], peer));
        requests.push_back(request_of(SR_OP_RECV, 5, 70'000, received[3 * peer + i], peer));
      }
      auto request = request_of(SR_OP_SEND, 6, arena.bytes() / sizeof(float), sent[2], peer);
      request.send = sdk::Buffer{arena.data(), arena.bytes(), registration};
      requests.push_back(request);
      requests.push_back(request_of(SR_OP_RECV, 6, arena.bytes() / sizeof(float), received[3 * peer + 2], peer));
    }
    auto op = group.prepare(requests, after(30));
    for (int round = 0; round < 5; ++round) {
      const auto value = [&](std::uint32_t from, std::size_t i) {
        return static_cast<float>(100 * round + 10 * static_cast<int>(from) + static_cast<int>(i));
      };
      for (std::size_t i = 0; i < 2; ++i) {
        sent[i].assign(70'000, value(self, i));
      }
      std::fill_n(arena.data(), arena.bytes() / sizeof(float), value(self, 2));
      run(op);
      for (std::uint32_t turn = 1; turn < 3; ++turn) {
        const std::uint32_t peer = (self + turn) % 3;
        for (std::size_t i = 0; i < 3; ++i) {
          const std::size_t size = i == 2 ? arena.bytes() / sizeof(float) : 70'000;
          const auto& got = received[3 * peer + i];
          wrong[self] += std::count(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(size), value(peer, i)) ==
                                 static_cast<std::ptrdiff_t>(size)
                             ? 0
                             : 1;
        }
      }
      rank.meet("round " + std::to_string(round));
    }
  });
  CHECK(wrong == std::array<int, 3>{});
}

TEST_CASE("shm: sums of fractions have the same bits in all buffers and by all algorithms") {
  const std::uint32_t n = GENERATE(2U, 3U, 5U);
  const std::size_t count = GENERATE(as<std::size_t>{}, 7, 1000, 16'001);
  std::vector<std::vector<float>> sums(2 * n);
  std::vector<Arena> arenas(n);
  const auto term = [](std::uint32_t rank, std::size_t i) {
    return 1.0F / static_cast<float>(3 + i * (rank + 1) % 1009);
  };
  run_ranks("shm", n, [&](Rank& rank) {
    const Arena& arena = arenas[rank.rank()];
    const std::uint64_t registration =
        rank.transport().register_memory(arena.data(), arena.bytes(), arena.descriptor());
    auto group = rank.group();
    std::vector<float> own(count);
    for (std::size_t i = 0; i < count; ++i) {
      own[i] = arena.data()[i] = term(rank.rank(), i);
    }
    auto request = request_of(SR_OP_ALL_REDUCE, 1, count, own);
    auto unmapped = group.prepare({request}, after(30));
    request.id = 2;
    request.send = request.recv = sdk::Buffer{arena.data(), arena.bytes(), registration};
    auto mapped = group.prepare({request}, after(30));
    run(unmapped);
    run(mapped);
    sums[2 * rank.rank()] = own;
    sums[2 * rank.rank() + 1].assign(arena.data(), arena.data() + count);
    rank.meet("end");
  });
  std::vector<float> in_order(count);
  for (std::size_t i = 0; i < count; ++i) {
    in_order[i] = term(0, i);
    for (std::uint32_t r = 1; r < n; ++r) {
      in_order[i] += term(r, i);
    }
  }
  CHECK(std::all_of(sums.begin(), sums.end(), [&](const auto& sum) { return sum == in_order; }));
}

TEST_CASE("shm: a member that only sends runs ahead, and no receiver gets a later round's data") {
  constexpr std::uint32_t n = 3;
  constexpr int rounds = 150;  // more than a root can be ahead
  const std::uint32_t opcode = GENERATE(as<std::uint32_t>{}, SR_OP_BROADCAST, SR_OP_REDUCE);
  const std::size_t count = GENERATE(as<std::size_t>{}, 1, 100, 20'000);
  const std::uint32_t slow = GENERATE(0U, 1U, 2U);
  std::array<int, n> wrong = {};
  run_ranks("shm", n, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> from(count);
    std::vector<float> to(count);
    auto request = request_of(opcode, 1, count, from, 1);
    request.recv = sdk::Buffer{to.data(), count * sizeof(float), 0};
    if (opcode == SR_OP_BROADCAST && rank.rank() != 1) {
      request.send.reset();
    }
    if (opcode == SR_OP_REDUCE && rank.rank() != 1) {
      request.recv.reset();
    }
    auto op = group.prepare({request}, after(30));
    for (int round = 0; round < rounds; ++round) {
      for (int i = 0; rank.rank() == slow && round % 50 == 0 && i < 200; ++i) {
        std::this_thread::yield();
      }
      from.assign(count,
                  static_cast<float>(opcode == SR_OP_REDUCE ? round * static_cast<int>(1 + rank.rank()) : round));
      run(op);
      const float expected = static_cast<float>(opcode == SR_OP_REDUCE ? round * 6 : round);
      const bool receives = opcode == SR_OP_BROADCAST || rank.rank() == 1;
      wrong[rank.rank()] += receives && to != std::vector<float>(count, expected) ? 1 : 0;
    }
    rank.meet("end");
  });
  CHECK(wrong == std::array<int, n>{});
}
