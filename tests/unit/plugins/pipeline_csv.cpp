// Lists of actions in the notation of torch.distributed.pipelining.

#include <shardrun/sdk/pipeline.hpp>

#include <functional>
#include <string>

#include "tests/support/catch.h"

using namespace shardrun::sdk;
using Kind = Action::Kind;

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

/// As a user would write what the SDK makes.
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

TEST_CASE("a line of text is a stage's list of actions", "[sdk]") {
  const auto stages = actions_from_csv("0F0,0F1,,0B0, 3I12 ,\t3W12\r\n,,1F0,1B0,,\n");

  REQUIRE(stages.size() == 2);
  CHECK(stages[0] == std::vector<Action>{{Kind::forward, 0, 0},
                                         {Kind::forward, 0, 1},
                                         {Kind::backward, 0, 0},
                                         {Kind::backward_input, 3, 12},
                                         {Kind::backward_weight, 3, 12}});
  CHECK(stages[1] == std::vector<Action>{{Kind::forward, 1, 0}, {Kind::backward, 1, 0}});
}

TEST_CASE("empty lines at the end are no stages, between others they are", "[sdk]") {
  CHECK(actions_from_csv("").empty());
  CHECK(actions_from_csv(" \r\n\n").empty());
  CHECK(actions_from_csv("0F0\n\n1F0").size() == 3);
  CHECK(actions_from_csv("\xEF\xBB\xBF"
                         "0F0\n\r\n \n")
            .size() == 1);
}

TEST_CASE("the schedules that the SDK makes come back from text", "[sdk]") {
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

TEST_CASE("what is no action is told by line and cell", "[sdk]") {
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

TEST_CASE("communication is refused: it follows from what is computed", "[sdk]") {
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

TEST_CASE("a host that knows nothing of files delivers choices", "[sdk]") {
  // What lies behind a struct of release 1.0 is no part of it.
  const sr_option_value old = {SR_OPTION_VALUE_SIZE_1_0, SR_OPTION_TEXT, "schedule", 0, 0, "gpipe", "something else"};
  const sr_option_value file = {sizeof(sr_option_value), SR_OPTION_TEXT, "schedule", 0, 0, "/mine.csv", ""};

  CHECK_FALSE(OptionValues(&old, 1, sizeof(old)).contents("schedule"));
  CHECK(OptionValues(&file, 1, sizeof(file)).contents("schedule") == "");
  CHECK(OptionValues(&file, 1, sizeof(file)).text("schedule") == "/mine.csv");
}
