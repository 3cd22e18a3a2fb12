#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/support/errors.h"
#include "tests/support/transport_ranks.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

namespace {

/// Sends or receives of one float each, prepared as one batch.
class Messages {
 public:
  Messages(plugins::TransportGroup& group, std::uint32_t opcode, std::uint32_t peer,
           const std::vector<std::uint64_t>& ids)
      : values_(ids.size(), std::vector<float>(1)), op_(prepare(group, opcode, peer, ids)) {}

  [[nodiscard]] float& value(std::size_t i) noexcept { return values_[i][0]; }
  [[nodiscard]] plugins::TransportOp& op() noexcept { return op_; }

 private:
  plugins::TransportOp prepare(plugins::TransportGroup& group, std::uint32_t opcode, std::uint32_t peer,
                               const std::vector<std::uint64_t>& ids) {
    std::vector<sdk::OpSpec> requests;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      requests.push_back(request_of(opcode, ids[i], 1, values_[i], peer));
    }
    return group.prepare(requests, after(30));
  }

  std::vector<std::vector<float>> values_;
  plugins::TransportOp op_;
};

std::vector<std::uint64_t> ids_from(std::uint64_t first, std::size_t n) {
  std::vector<std::uint64_t> ids(n);
  for (std::size_t i = 0; i < n; ++i) {
    ids[i] = first + i;
  }
  return ids;
}

}  // namespace

TEST_CASE("shm: many sends of one batch match receives of several batches, in either order of start") {
  int wrong = 0;
  run_ranks("shm", 2, [&](Rank& rank) {
    auto group = rank.group();
    if (rank.rank() == 0) {
      Messages messages(group, SR_OP_SEND, 1, ids_from(0, 400));
      for (int round = 0; round < 3; ++round) {
        for (std::size_t i = 0; i < 400; ++i) {
          messages.value(i) = static_cast<float>(1000 * round + static_cast<int>(i));
        }
        messages.op().start(after(10));
        finish(messages.op());
      }
    } else {
      std::vector<std::unique_ptr<Messages>> parts;
      for (const std::uint64_t first : {300U, 200U, 0U, 100U}) {
        parts.push_back(std::make_unique<Messages>(group, SR_OP_RECV, 0, ids_from(first, 100)));
      }
      for (int round = 0; round < 3; ++round) {
        for (std::unique_ptr<Messages>& part : parts) {
          part->op().start(after(10));
        }
        const std::array<int, 4> firsts = {300, 200, 0, 100};
        for (std::size_t p = 0; p < parts.size(); ++p) {
          finish(parts[p]->op());
          for (std::size_t i = 0; i < 100; ++i) {
            wrong += parts[p]->value(i) == static_cast<float>(1000 * round + firsts[p] + static_cast<int>(i)) ? 0 : 1;
          }
        }
      }
    }
    rank.meet("end");
  });
  CHECK(wrong == 0);
}

TEST_CASE("shm: messages with one id arrive in the order in which they were sent") {
  constexpr int rounds = depth(200, 200, 50);
  int wrong = 0;
  run_ranks("shm", 2, [&](Rank& rank) {
    auto group = rank.group();
    const std::vector<std::uint64_t> same(40, 7);
    if (rank.rank() == 0) {
      Messages messages(group, SR_OP_SEND, 1, same);
      for (std::size_t i = 0; i < same.size(); ++i) {
        messages.value(i) = static_cast<float>(i);
      }
      for (int round = 0; round < rounds; ++round) {
        messages.op().start(after(10));
        finish(messages.op());
      }
    } else {
      Messages first(group, SR_OP_RECV, 0, std::vector<std::uint64_t>(15, 7));
      Messages second(group, SR_OP_RECV, 0, std::vector<std::uint64_t>(25, 7));
      for (int round = 0; round < rounds; ++round) {
        first.op().start(after(10));
        second.op().start(after(10));
        finish(first.op());
        finish(second.op());
        for (std::size_t i = 0; i < same.size(); ++i) {
          wrong += (i < 15 ? first.value(i) : second.value(i - 15)) == static_cast<float>(i) ? 0 : 1;
        }
      }
    }
    rank.meet("end");
  });
  CHECK(wrong == 0);
}

TEST_CASE("shm: a batch with more sends to one member than fit is refused, and the group goes on") {
  std::string error;
  float got = 0;
  run_ranks("shm", 2, [&](Rank& rank) {
    auto group = rank.group();
    const bool sends = rank.rank() == 0;
    if (sends) {
      error = error_of([&] { const Messages messages(group, SR_OP_SEND, 1, ids_from(0, 4097)); });
    }
    Messages message(group, sends ? SR_OP_SEND : SR_OP_RECV, 1 - rank.rank(), {1});
    message.value(0) = sends ? 5 : 0;
    run(message.op());
    if (!sends) {
      got = message.value(0);
    }
    rank.meet("end");
  });
  CHECK_THAT(error, Contains("4097") && Contains("4096") && Contains("member 1 (rank 1") && Contains("split"));
  CHECK(got == 5);
}

TEST_CASE("shm: sends take no descriptors, whatever memory they use") {
  std::ptrdiff_t more = 0;
  run_ranks("shm", 2, [&](Rank& rank) {
    auto group = rank.group();
    const auto open_files = [] {
      return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
    };
    Messages first(group, rank.rank() == 0 ? SR_OP_SEND : SR_OP_RECV, 1 - rank.rank(), {5000});
    run(first.op());
    rank.meet("connected");
    const std::ptrdiff_t before = rank.rank() == 0 ? open_files() : 0;
    rank.meet("counted");
    Messages messages(group, rank.rank() == 0 ? SR_OP_SEND : SR_OP_RECV, 1 - rank.rank(), ids_from(0, 2000));
    run(messages.op());
    rank.meet("exchanged");
    if (rank.rank() == 0) {
      more = open_files() - before;
    }
    rank.meet("end");
  });
  CHECK(more == 0);
}

TEST_CASE("shm: a message whose size differs from its receive is refused, and its sender named") {
  std::string error;
  run_ranks("shm", 2, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(20);
    auto op = rank.rank() == 0 ? group.prepare({request_of(SR_OP_SEND, 7, 11, data, 1)}, after(30))
                               : group.prepare({request_of(SR_OP_RECV, 7, 10, data, 0)}, after(30));
    const std::string message = error_of([&] { run(op); });
    error = rank.rank() == 1 ? message : error;
    rank.meet("end");
  });
  CHECK_THAT(error, Contains("recv of 10 f32") && Contains("member 0 (rank 0") && Contains("sends 44 bytes") &&
                        Contains("expected 40"));
}
