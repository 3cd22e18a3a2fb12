// Every collective made of sends and receives, played for all members in one process.

#include <shardrun/sdk/collectives.hpp>

#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "plugins/conformance/values.h"
#include "tests/support/catch.h"

using namespace shardrun::sdk;
using shardrun::conformance::expected;
using shardrun::conformance::op_of;
using shardrun::conformance::sent;
using shardrun::conformance::Shape;

namespace {

struct Player {
  OpSpec op;
  Schedule schedule;
  std::vector<float> send;
  std::vector<float> recv;
  std::vector<float> scratch;
  std::size_t stage = 0;
  bool posted = false;

  float* place(const BufferRegion& region) {
    std::vector<float>& all = region.buffer == OpBuffer::send ? send : region.buffer == OpBuffer::recv ? recv : scratch;
    REQUIRE(region.offset + region.count <= all.size());
    return all.data() + region.offset;
  }
};

/// (from, to, tag)
using Address = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;

class Play {
 public:
  explicit Play(const Shape& shape, bool in_order = false) : shape_(shape) {
    for (std::uint32_t rank = 0; rank < shape.members; ++rank) {
      Player& player = players_.emplace_back();
      player.op = op_of(shape, rank);
      check(player.op, shape.members);
      player.schedule =
          in_order ? schedule_in_order_of(player.op, rank, shape.members) : schedule_of(player.op, rank, shape.members);
      const std::vector<double> given = sent(shape, rank, 0);
      player.send.assign(given.begin(), given.end());
      player.recv.assign(expected(shape, rank, 0).size(), -1.0F);
      player.scratch.assign(player.schedule.scratch_elements, -1.0F);
    }
  }

  /// Messages wait for their receivers, as if sends never blocked.
  void run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::uint32_t rank = 0; rank < players_.size(); ++rank) {
        moved = step(rank) || moved;
      }
    }
  }

  void verify() {
    CHECK(under_way_.empty());
    for (std::uint32_t rank = 0; rank < players_.size(); ++rank) {
      Player& player = players_[rank];
      CHECK(player.stage == player.schedule.stages.size());
      const std::vector<double> wanted = expected(shape_, rank, 0);
      CHECK(std::vector<double>(player.recv.begin(), player.recv.end()) == wanted);
      const std::vector<double> given = sent(shape_, rank, 0);
      CHECK(std::vector<double>(player.send.begin(), player.send.end()) == given);
    }
  }

  [[nodiscard]] Player& player(std::uint32_t rank) { return players_[rank]; }

  [[nodiscard]] std::uint64_t most_scratch() const {
    std::uint64_t most = 0;
    for (const Player& player : players_) {
      most = std::max(most, player.schedule.scratch_elements * dtype_size(player.schedule.dtype));
    }
    return most;
  }
  [[nodiscard]] std::uint64_t elements_sent(std::uint32_t rank) const {
    std::uint64_t elements = 0;
    for (const ScheduleStage& stage : players_[rank].schedule.stages) {
      for (const Movement& movement : stage.sends) {
        elements += movement.region.count;
      }
    }
    return elements;
  }

 private:
  bool step(std::uint32_t rank) {
    Player& player = players_[rank];
    if (player.stage == player.schedule.stages.size()) {
      return false;
    }
    const ScheduleStage& stage = player.schedule.stages[player.stage];
    if (!player.posted) {
      for (const Movement& movement : stage.sends) {
        const float* from = player.place(movement.region);
        const bool is_new = under_way_
                                .try_emplace({rank, movement.peer, movement.tag},
                                             std::vector<float>(from, from + movement.region.count))
                                .second;
        REQUIRE(is_new);
        REQUIRE(seen_.insert({rank, movement.peer, movement.tag}).second);
      }
      player.posted = true;
    }
    for (const Movement& movement : stage.receives) {
      if (!under_way_.contains({movement.peer, rank, movement.tag})) {
        return false;
      }
    }
    for (const Movement& movement : stage.receives) {
      const auto message = under_way_.extract({movement.peer, rank, movement.tag});
      REQUIRE(message.mapped().size() == movement.region.count);
      std::copy(message.mapped().begin(), message.mapped().end(), player.place(movement.region));
    }
    for (const LocalStep& local : stage.steps) {
      REQUIRE(local.from.count == local.to.count);
      float* to = player.place(local.to);
      const float* from = player.place(local.from);
      if (local.reduces) {
        reduce(SR_DTYPE_F32, shape_.reduction, to, from, local.to.count);
      } else {
        std::memmove(to, from, local.to.count * sizeof(float));
      }
    }
    ++player.stage;
    player.posted = false;
    return true;
  }

  Shape shape_;
  std::vector<Player> players_;
  std::map<Address, std::vector<float>> under_way_;
  std::set<Address> seen_;
};

}  // namespace

TEST_CASE("collectives of sends and receives have the results of collectives", "[sdk]") {
  for (const OpcodeTraits& traits : opcodes) {
    for (std::uint32_t members = 1; members <= 9 && traits.collective; ++members) {
      for (const std::uint64_t count : {0U, 1U, 5U, 64U}) {
        for (std::uint32_t root = 0; root < (traits.has_root ? members : 1); ++root) {
          INFO(traits.name << " of " << members << " members, " << count << " elements, root " << root);
          const Shape shape = {.opcode = traits.opcode, .members = members, .count = count, .root = root};
          Play play(shape);

          play.run();

          play.verify();
          CHECK(play.most_scratch() == scratch_bytes_of(op_of(shape, 0), members));
        }
      }
    }
  }
}

TEST_CASE("in order, collectives have the same results and need the scratch that is stated", "[sdk]") {
  for (const OpcodeTraits& traits : opcodes) {
    for (std::uint32_t members = 2; members <= 7 && traits.collective; ++members) {
      for (std::uint32_t root = 0; root < (traits.has_root ? members : 1); ++root) {
        for (const std::uint64_t count : {0U, 1U, 5U, 64U}) {
          INFO(traits.name << " of " << members << " members, " << count << " elements, root " << root);
          const Shape shape = {.opcode = traits.opcode, .members = members, .count = count, .root = root};
          Play play(shape, true);

          play.run();

          play.verify();
          CHECK(play.most_scratch() == scratch_bytes_in_order_of(op_of(shape, 0), members));
        }
      }
    }
  }
}

TEST_CASE("in order, every element is the sum of the members' one after the other", "[sdk]") {
  constexpr std::uint32_t members = 5;
  constexpr std::uint64_t count = 15;
  const auto value = [](std::uint32_t rank, std::uint64_t i) {
    return static_cast<float>(rank % 2 == 0 ? 1e8 : 1.0) / static_cast<float>(3 + rank + i);
  };
  for (const std::uint32_t opcode : {SR_OP_ALL_REDUCE, SR_OP_REDUCE_SCATTER, SR_OP_REDUCE}) {
    const Shape shape = {.opcode = opcode, .members = members, .count = count, .root = 3};
    Play play(shape, true);
    const std::uint64_t sends = play.player(0).send.size();
    for (std::uint32_t rank = 0; rank < members; ++rank) {
      for (std::uint64_t i = 0; i < sends; ++i) {
        play.player(rank).send[i] = value(rank, i);
      }
    }

    play.run();

    for (std::uint32_t rank = 0; rank < members; ++rank) {
      const std::uint64_t first = opcode == SR_OP_REDUCE_SCATTER ? rank * count : 0;
      for (std::uint64_t i = 0; i < (opcode == SR_OP_REDUCE && rank != 3 ? 0 : count); ++i) {
        float sum = value(0, first + i);
        for (std::uint32_t other = 1; other < members; ++other) {
          sum += value(other, first + i);
        }
        CHECK(play.player(rank).recv[i] == sum);
      }
    }
  }
}

TEST_CASE("collectives of sends and receives move as little as is stated", "[sdk]") {
  const auto sent_by_first = [](std::uint32_t opcode, std::uint64_t count) {
    return Play({.opcode = opcode, .members = 8, .count = count}).elements_sent(0);
  };

  CHECK(sent_by_first(SR_OP_ALL_REDUCE, 800) == 2 * 7 * 100);
  CHECK(sent_by_first(SR_OP_REDUCE_SCATTER, 100) == 7 * 100);
  CHECK(sent_by_first(SR_OP_ALL_GATHER, 100) == 7 * 100);
  CHECK(sent_by_first(SR_OP_ALL_TO_ALL, 100) == 7 * 100);
  CHECK(sent_by_first(SR_OP_BROADCAST, 100) == 3 * 100);
  CHECK(sent_by_first(SR_OP_REDUCE, 100) == 0);
  CHECK(sent_by_first(SR_OP_SCATTER, 100) == 7 * 100);
  CHECK(sent_by_first(SR_OP_BARRIER, 0) == 3);
}
