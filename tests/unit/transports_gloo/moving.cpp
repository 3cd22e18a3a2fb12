#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/transport_ranks.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

/// Sums that depend on the order of their terms.
float rough(std::uint32_t rank, std::size_t i) {
  return static_cast<float>((rank * 7919 + i * 104'729) % 100'003) * (rank % 2 == 0 ? 1e-3F : 1e4F);
}

std::uint32_t flags_of(std::uint64_t count, std::uint32_t members, std::uint32_t opcode = SR_OP_ALL_REDUCE) {
  std::vector<float> none;
  SharedHost host;
  return plugins::Transport::load({SHARDRUN_BUILT_PLUGINS}, "gloo")
      .query(request_of(opcode, 1, count, none), members)
      .flags;
}

}  // namespace

TEST_CASE("gloo: short all_reduces add in the order of the members") {
  constexpr std::uint32_t n = 5;
  const std::size_t count = GENERATE(as<std::size_t>(), 1, 3, 1000, 2048);
  REQUIRE((flags_of(count, n) & SR_OP_INFO_ORDERED) != 0);
  std::vector<float> expected(count);
  for (std::size_t i = 0; i < count; ++i) {
    expected[i] = rough(0, i);
    for (std::uint32_t rank = 1; rank < n; ++rank) {
      expected[i] += rough(rank, i);
    }
  }
  std::array<bool, n> same = {};
  run_ranks("gloo", n, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(count);
    auto op = group.prepare({request_of(SR_OP_ALL_REDUCE, 1, count, data)}, after(30));
    for (int round = 0; round < 20; ++round) {
      for (std::size_t i = 0; i < count; ++i) {
        data[i] = rough(rank.rank(), i);
      }
      run(op);
      same[rank.rank()] =
          (round == 0 || same[rank.rank()]) && std::memcmp(data.data(), expected.data(), count * sizeof(float)) == 0;
    }
  });
  CHECK(same == std::array<bool, n>{true, true, true, true, true});
}

TEST_CASE("gloo: long all_reduces and those of many members are not done in one shot") {
  CHECK((flags_of(2048, 2) & SR_OP_INFO_ORDERED) != 0);
  CHECK((flags_of(2049, 2) & SR_OP_INFO_ORDERED) == 0);
  CHECK((flags_of(2048, 9) & SR_OP_INFO_ORDERED) != 0);
  CHECK((flags_of(2048, 10) & SR_OP_INFO_ORDERED) == 0);
  CHECK((flags_of(1, 16) & SR_OP_INFO_ORDERED) != 0);
  CHECK((flags_of(1, 17) & SR_OP_INFO_ORDERED) == 0);
  CHECK((flags_of(1, 2, SR_OP_BROADCAST) & SR_OP_INFO_ORDERED) == 0);
}

TEST_CASE("gloo: messages around the eager limit arrive whole") {
  const std::size_t count = GENERATE(as<std::size_t>(), 2047, 2048, 2049, 4096, 4097);
  constexpr std::uint32_t n = 3;
  std::array<bool, n> right = {};
  run_ranks("gloo", n, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(count);
    if (rank.rank() == 1) {
      std::iota(data.begin(), data.end(), 1.0F);
    }
    auto op = group.prepare({request_of(SR_OP_BROADCAST, 1, count, data, 1)}, after(30));
    run(op);
    std::vector<float> expected(count);
    std::iota(expected.begin(), expected.end(), 1.0F);
    right[rank.rank()] = data == expected;
  });
  CHECK(right == std::array<bool, n>{true, true, true});
}

TEST_CASE("gloo: messages arrive even if their sender has left") {
  const std::size_t count = GENERATE(as<std::size_t>(), 1, 100'000);
  float sum = 0;
  run_ranks("gloo", 2, [&](Rank& rank) {
    auto group = rank.group();
    for (std::uint64_t id = 1; id <= 20; ++id) {
      std::vector<float> data(count, rank.rank() == 0 ? static_cast<float>(id) : 0.0F);
      auto op = group.prepare(
          {request_of(rank.rank() == 0 ? SR_OP_SEND : SR_OP_RECV, id, count, data, 1 - rank.rank())}, after(30));
      run(op);
      if (rank.rank() == 1) {
        sum += data.back();
      }
    }
    // Rank 0 is the first to come here; its group and transport end at once.
  });
  CHECK(sum == 210.0F);
}

TEST_CASE("gloo: both members may send many eager messages before the first is read") {
  std::array<float, 2> sums = {};
  run_ranks("gloo", 2, [&](Rank& rank) {
    auto group = rank.group();
    const std::uint32_t other = 1 - rank.rank();
    std::vector<std::vector<float>> sent(50, std::vector<float>(100));
    std::vector<std::vector<float>> received(50, std::vector<float>(100));
    std::vector<sdk::OpSpec> batch;
    for (std::size_t i = 0; i < sent.size(); ++i) {
      sent[i][99] = static_cast<float>(i);
      batch.push_back(request_of(SR_OP_SEND, i, 100, sent[i], other));
      batch.push_back(request_of(SR_OP_RECV, sent.size() - 1 - i, 100, received[i], other));
    }
    auto op = group.prepare(batch, after(30));
    run(op);
    run(op);
    bool right = true;
    for (std::size_t i = 0; i < received.size(); ++i) {
      right = right && received[i][99] == static_cast<float>(received.size() - 1 - i);
    }
    sums[rank.rank()] = right ? 1.0F : 0.0F;
  });
  CHECK(sums == std::array<float, 2>{1, 1});
}

TEST_CASE("gloo: wire_bytes counts what is given to Gloo") {
  std::array<std::uint64_t, 2> bytes = {};
  run_ranks("gloo", 2, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(1000);
    auto op = group.prepare({request_of(SR_OP_ALL_REDUCE, 1, data.size(), data)}, after(30));
    const std::uint64_t before = rank.transport().wire_bytes();
    for (int i = 0; i < 3; ++i) {
      run(op);
    }
    bytes[rank.rank()] = rank.transport().wire_bytes() - before;
  });
  // An eager message: its header and 4,000 bytes, after an announcement and a preamble. Room for eager messages is
  // announced again from the second op on.
  constexpr std::uint64_t expected = 3 * (32 + 4000 + 2 * 48) + 2 * 48;
  CHECK(bytes == std::array<std::uint64_t, 2>{expected, expected});
}

TEST_CASE("gloo: long messages of sums are sent in pieces, and long messages of copies whole") {
  // Beside its bytes Gloo sends 96 with each message, and 48 for each that it is to receive.
  constexpr std::uint64_t sent = 96;
  constexpr std::uint64_t received = 48;
  constexpr std::size_t count = std::size_t{3} << 18U;  // 3 MiB: halves of one and a half times the usual chunk
  constexpr std::uint64_t bytes = count * sizeof(float);
  std::array<bool, 2> right = {};
  std::array<std::uint64_t, 2> summing = {};
  std::array<std::uint64_t, 2> copying = {};
  run_ranks("gloo", 2, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(count);
    for (std::size_t i = 0; i < count; ++i) {
      data[i] = static_cast<float>(i % 1000 + rank.rank());
    }
    auto sum = group.prepare({request_of(SR_OP_ALL_REDUCE, 1, count, data)}, after(30));
    auto copy = group.prepare({request_of(SR_OP_BROADCAST, 2, count, data)}, after(30));
    const std::uint64_t before = rank.transport().wire_bytes();
    run(sum);
    const std::uint64_t between = rank.transport().wire_bytes();
    run(copy);
    summing[rank.rank()] = between - before;
    copying[rank.rank()] = rank.transport().wire_bytes() - between;
    bool same = true;
    for (std::size_t i = 0; i < count; ++i) {
      same = same && data[i] == static_cast<float>(2 * (i % 1000) + 1);
    }
    right[rank.rank()] = same;
  });
  CHECK(right == std::array<bool, 2>{true, true});
  CHECK(summing == std::array<std::uint64_t, 2>{bytes + 4 * (sent + received), bytes + 4 * (sent + received)});
  CHECK(copying == std::array<std::uint64_t, 2>{bytes + sent, received});
}
