#include <shardrun/sdk/transport/collectives.hpp>
#include <shardrun/sdk/strategy/pipeline.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/conformance/values.h"
#include "tests/support/catch.h"

using namespace shardrun::sdk;
using shardrun::conformance::op_of;
using shardrun::conformance::ops_of;
using shardrun::conformance::Shape;
using Kind = Action::Kind;

// Every collective made of sends and receives, simulated for all members in one process.

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

/// The sender, the receiver and the tag of a message.
using Address = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;

class Play {
 public:
  explicit Play(const Shape& shape, bool in_order = false) : shape_(shape), ops_(ops_of(shape)) {
    for (std::uint32_t rank = 0; rank < shape.members; ++rank) {
      Player& player = players_.emplace_back();
      player.op = ops_[rank];
      check(player.op, shape.members);
      player.schedule =
          in_order ? schedule_in_order_of(player.op, rank, shape.members) : schedule_of(player.op, rank, shape.members);
      player.send.resize(send_elements(player.op, rank, shape.members));
      shardrun::conformance::write_sent(shape, ops_, rank, 0, player.send.data());
      player.recv.assign(recv_elements(player.op, rank, shape.members), -1.0F);
      player.scratch.assign(player.schedule.scratch_elements, -1.0F);
    }
  }

  /// Runs all members. Messages wait for their receivers, as if sends never blocked.
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
      CHECK(shardrun::conformance::wrong_received(shape_, ops_, player.op, rank, 0, player.recv.data()).count == 0);
      CHECK(shardrun::conformance::wrong_sent(shape_, ops_, rank, 0, player.send.data()).count == 0);
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
      REQUIRE(local.from.size() == (local.reduces ? std::max<std::size_t>(local.from.size(), 2) : 1));
      for (const BufferRegion& from : local.from) {
        REQUIRE(from.count == local.to.count);
      }
      const auto source_of = [&](std::size_t i) { return player.place(local.from[i]); };
      float* const to = player.place(local.to);
      if (local.reduces) {
        Reducer(SR_DTYPE_F32, shape_.reduction)
            .run(
                local.from.size(), source_of, 1, [&](std::size_t) { return to; }, local.to.count);
      } else {
        std::memmove(to, source_of(0), local.to.count * sizeof(float));
      }
    }
    ++player.stage;
    player.posted = false;
    return true;
  }

  Shape shape_;
  std::vector<OpSpec> ops_;
  std::vector<Player> players_;
  std::map<Address, std::vector<float>> under_way_;
  std::set<Address> seen_;
};

}  // namespace

TEST_CASE("collectives made of sends and receives have the right results and the stated scratch", "[sdk]") {
  for (const OpcodeTraits& traits : opcodes) {
    for (std::uint32_t members = 1; members <= 9 && traits.collective; ++members) {
      for (const std::uint64_t count : {0U, 1U, 5U, 64U, 9000U}) {
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

TEST_CASE("ordered collectives have the right results and the stated scratch", "[sdk]") {
  for (const OpcodeTraits& traits : opcodes) {
    for (std::uint32_t members = 2; members <= 7 && traits.collective; ++members) {
      for (std::uint32_t root = 0; root < (traits.has_root ? members : 1); ++root) {
        for (const std::uint64_t count : {0U, 1U, 5U, 64U, 9000U}) {
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

TEST_CASE("ordered collectives cut large blocks into pieces, which bounds the scratch", "[sdk]") {
  for (const std::uint32_t opcode : {SR_OP_ALL_REDUCE, SR_OP_REDUCE_SCATTERV, SR_OP_REDUCE}) {
    INFO("opcode " << opcode);
    constexpr std::uint32_t members = 4;
    const std::uint64_t count = opcode == SR_OP_ALL_REDUCE ? 800'003 : 200'001;  // blocks of 800 KB: 4 pieces
    const Shape shape = {.opcode = opcode, .members = members, .count = count, .root = 1};
    Play play(shape, true);
    Play ring(shape);

    play.run();

    play.verify();
    const std::uint64_t stated = scratch_bytes_in_order_of(op_of(shape, 0), members);
    CHECK(play.most_scratch() <= stated);
    CHECK(stated < std::uint64_t{2} * (members - 1) * (256U << 10U));
    std::uint64_t in_order = 0;
    std::uint64_t in_ring = 0;
    for (std::uint32_t rank = 0; rank < members; ++rank) {
      in_order += play.elements_sent(rank);
      in_ring += ring.elements_sent(rank);
    }
    CHECK(in_order == in_ring);
  }
}

TEST_CASE("sums of 16-bit floats over more than two members are ordered", "[sdk]") {
  for (const std::uint32_t members : {2U, 3U, 8U}) {
    for (const std::uint32_t reduction : {SR_REDUCE_SUM, SR_REDUCE_PRODUCT, SR_REDUCE_MIN}) {
      const OpSpec op = {.opcode = SR_OP_REDUCE_SCATTER, .dtype = SR_DTYPE_BF16, .reduction = reduction, .count = 8000};
      const bool is_in_order = members > 2 && reduction != SR_REDUCE_MIN;
      const std::uint64_t blocks = is_in_order ? members - 1 : members == 2 ? 1 : 2;

      CHECK(scratch_bytes_of(op, members) == blocks * 8000 * 2);
      CHECK(schedule_of(op, 0, members).stages.size() == (is_in_order ? 1 : members - 1));
    }
  }
}

TEST_CASE("an ordered sum adds the members' elements one after the other", "[sdk]") {
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

TEST_CASE("collectives made of sends and receives send the stated number of elements", "[sdk]") {
  const auto sent_by_first = [](std::uint32_t opcode, std::uint64_t count) {
    return Play({.opcode = opcode, .members = 8, .count = count}).elements_sent(0);
  };

  CHECK(sent_by_first(SR_OP_ALL_REDUCE, 80'000) == 2 * 7 * 10'000);
  CHECK(sent_by_first(SR_OP_REDUCE_SCATTER, 10'000) == 7 * 10'000);
  CHECK(sent_by_first(SR_OP_ALL_GATHER, 10'000) == 7 * 10'000);
  CHECK(sent_by_first(SR_OP_ALL_TO_ALL, 100) == 7 * 100);
  CHECK(sent_by_first(SR_OP_BROADCAST, 100) == 3 * 100);
  CHECK(sent_by_first(SR_OP_REDUCE, 100) == 0);
  CHECK(sent_by_first(SR_OP_SCATTER, 100) == 7 * 100);
}

TEST_CASE("small collectives take one stage, in which every member sends its block to all others", "[sdk]") {
  struct Small {
    std::uint32_t opcode;
    std::uint64_t count;
    std::uint64_t block;
  };
  for (const Small& small : {Small{SR_OP_ALL_REDUCE, 800, 800}, Small{SR_OP_REDUCE_SCATTER, 100, 100},
                             Small{SR_OP_ALL_GATHER, 100, 100}, Small{SR_OP_BARRIER, 0, 1}}) {
    INFO("opcode " << small.opcode);
    Play play({.opcode = small.opcode, .members = 8, .count = small.count});
    CHECK(play.elements_sent(0) == 7 * small.block);
    CHECK(play.player(0).schedule.stages.size() == 1);
  }
  CHECK(schedule_of({.opcode = SR_OP_BARRIER}, 0, 17).stages.size() == 5);
}

// Lists of actions in the notation of torch.distributed.pipelining.

namespace {

std::string invalid(const std::function<void()>& act) {
  try {
    act();
  } catch (const InvalidJob& error) {
    return error.what();
  }
  return "nothing";
}

std::string refusal(const std::string& text) {
  return invalid([&] { static_cast<void>(actions_from_csv(text)); });
}

std::string refusal_of_chunks(const std::string& text) {
  return invalid([&] { static_cast<void>(stages_of_chunks(actions_from_csv(text))); });
}

/// The actions in the form in which a user writes them.
std::string csv_of(const std::vector<Action>& actions) {
  constexpr const char* letters = " FBIW";
  std::string line;
  for (const Action& action : actions) {
    line += (line.empty() ? "" : ",") + std::to_string(action.chunk) + letters[static_cast<std::size_t>(action.kind)] +
            std::to_string(action.microbatch);
  }
  return line + "\n";
}

}  // namespace

TEST_CASE("a line of text is the list of actions of a stage", "[sdk]") {
  const auto stages = actions_from_csv("0F0,0F1,,0B0, 3I12 ,\t3W12\r\n,,1F0,1B0,,\n");

  REQUIRE(stages.size() == 2);
  CHECK(stages[0] == std::vector<Action>{{Kind::forward, 0, 0},
                                         {Kind::forward, 0, 1},
                                         {Kind::backward, 0, 0},
                                         {Kind::backward_input, 3, 12},
                                         {Kind::backward_weight, 3, 12}});
  CHECK(stages[1] == std::vector<Action>{{Kind::forward, 1, 0}, {Kind::backward, 1, 0}});
}

TEST_CASE("empty lines are stages between other lines, and nothing at the end", "[sdk]") {
  CHECK(actions_from_csv("").empty());
  CHECK(actions_from_csv(" \r\n\n").empty());
  CHECK(actions_from_csv("0F0\n\n1F0").size() == 3);
  CHECK(actions_from_csv("\xEF\xBB\xBF"
                         "0F0\n\r\n \n")
            .size() == 1);
}

TEST_CASE("schedules made by the SDK are read back from text", "[sdk]") {
  for (const std::uint32_t stages : {1U, 2U, 4U}) {
    std::string text;
    std::vector<std::vector<Action>> made;
    for (std::uint32_t stage = 0; stage < stages; ++stage) {
      made.push_back(zero_bubble_h1(stage, stages, 8));
      text += csv_of(made.back());
    }
    CHECK(actions_from_csv(text) == made);
  }
}

TEST_CASE("a cell that is not an action is reported with line and cell", "[sdk]") {
  const std::string expected =
      "' is no action, expected the number of a chunk, one of F, B, I and W, and the number of a microbatch, as in 2F0";
  CHECK(refusal("0F0,0G1") == "line 1, cell 2: '0G1" + expected);
  CHECK(refusal("0F0\n,,F1") == "line 2, cell 3: 'F1" + expected);
  for (const char* cell : {"0F", "0", "F", "0F0F0", "0F-1", "-1F0", "+1F0", "0f0", "0 F 0", "0FB0", "4294967296F0",
                           "0F4294967296", "0F0;1B1", "(0F1;1B2)OVERLAP_F_B"}) {
    INFO(cell);
    CHECK(refusal(cell) == "line 1, cell 1: '" + std::string(cell) + expected);
  }
  CHECK(refusal(std::string(100, 'x')) == "line 1, cell 1: '" + std::string(40, 'x') + expected);
}

TEST_CASE("communication in a schedule is refused, as it follows from the actions", "[sdk]") {
  for (const char* cell : {"0SEND_F1", "1RECV_F0", "1SEND_B0", "0RECV_B1", "0UNSHARD", "0RESHARD", "0REDUCE_GRAD"}) {
    INFO(cell);
    CHECK(refusal("0F0," + std::string(cell)) ==
          "line 1, cell 2: '" + std::string(cell) +
              "' is communication, which follows from what is computed: write F, B, I and W alone");
  }
}

TEST_CASE("a chunk is on the stage of its line", "[sdk]") {
  CHECK(stages_of_chunks(actions_from_csv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0")) ==
        std::vector<std::uint32_t>{0, 1, 1, 0});
  CHECK(refusal_of_chunks("0F0\n1F0,1B0\n0B0") == "chunk 0 is on line 1 and on line 3: a chunk is on one stage");
  CHECK(refusal_of_chunks("0F0\n4000000000F0") ==
        "it has chunk 4000000000 and no chunk 1: chunks are numbered from 0, in the order of the layers");
}

TEST_CASE("option values of a host without files are choices", "[sdk]") {
  // What lies after a struct of release 1.0 is no part of it.
  const sr_option_value old = {SR_OPTION_VALUE_SIZE_1_0, SR_OPTION_TEXT, "schedule", 0, 0, "gpipe", "something else"};
  const sr_option_value file = {sizeof(sr_option_value), SR_OPTION_TEXT, "schedule", 0, 0, "/mine.csv", ""};

  CHECK_FALSE(OptionValues(&old, 1, sizeof(old)).contents("schedule"));
  CHECK(OptionValues(&file, 1, sizeof(file)).contents("schedule") == "");
  CHECK(OptionValues(&file, 1, sizeof(file)).text("schedule") == "/mine.csv");
}
