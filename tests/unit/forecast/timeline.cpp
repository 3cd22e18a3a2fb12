// A pipeline in time: known bubbles of known schedules.

#include "core/forecast/timeline.h"

#include <functional>
#include <shardrun/sdk/strategy/pipeline.hpp>

#include "tests/support/catch.h"

using namespace shardrun;
using forecast::Timeline;
using partition::Pipeline;

namespace {

using ActionsOfStage = std::function<std::vector<sdk::Action>(std::uint32_t stage)>;

Pipeline pipeline(std::uint32_t stages, std::uint32_t chunks_per_stage, const ActionsOfStage& actions) {
  Pipeline made{.axis = mesh::AxisId(0), .chunks = {}, .actions = {}};
  for (std::uint32_t c = 0; c < stages * chunks_per_stage; ++c) {
    made.chunks.push_back({c, c % stages});
  }
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    std::vector<plan::Action> list;
    for (const sdk::Action& action : actions(stage)) {
      list.push_back({static_cast<plan::Action::Kind>(static_cast<std::uint32_t>(action.kind) - SR_ACTION_FORWARD),
                      action.chunk, action.microbatch});
    }
    made.actions.push_back(std::move(list));
  }
  return made;
}

constexpr std::uint32_t p = 4;
constexpr std::uint32_t m = 8;

Pipeline gpipe() {
  return pipeline(p, 1, [](std::uint32_t stage) { return sdk::gpipe_actions(stage, m); });
}
Pipeline alternating(std::uint32_t chunks) {
  return pipeline(p, chunks, [=](std::uint32_t stage) { return sdk::one_forward_one_backward(stage, p, chunks, m); });
}
Pipeline zero_bubble() {
  return pipeline(p, 1, [](std::uint32_t stage) { return sdk::zero_bubble_h1(stage, p, m); });
}

bool every_bubble_is(const Pipeline& pipeline, double expected) {
  const Timeline timeline = forecast::timeline_of(pipeline, forecast::unit_cost);
  bool all = true;
  for (const partition::StageId stage : timeline.stages.ids()) {
    all = all && timeline.bubble(stage) == expected;
  }
  return all;
}

/// The closed form; and if the timeline differs from it, what the timeline says.
std::string most_working(const Pipeline& pipeline) {
  const auto most = forecast::most_working(pipeline);
  if (!most) {
    return "unknown";
  }
  const double working = forecast::timeline_of(pipeline, forecast::unit_cost).working();
  return most->formula + (working == Approx(most->share) ? "" : " is not what they work");
}

}  // namespace

TEST_CASE("bubbles of 4 stages and 8 microbatches equal the papers'", "[timeline]") {
  CHECK(every_bubble_is(gpipe(), 3.0 / 8));
  CHECK(every_bubble_is(alternating(1), 3.0 / 8));
  CHECK(every_bubble_is(alternating(2), 3.0 / 16));
  CHECK(every_bubble_is(zero_bubble(), 1.0 / 8));
}

TEST_CASE("stages of equal cost work as much as the papers' closed forms say", "[timeline]") {
  CHECK(most_working(gpipe()) == "m / (m + s - 1), m = 8, s = 4");
  CHECK(most_working(alternating(1)) == "m / (m + s - 1), m = 8, s = 4");
  CHECK(most_working(alternating(2)) == "v m / (v m + s - 1), m = 8, s = 4, v = 2");
  CHECK(most_working(zero_bubble()) == "3 m / (3 m + s - 1), m = 8, s = 4");
  CHECK(forecast::most_working(gpipe())->share == Approx(8.0 / 11));
  CHECK(forecast::most_working(gpipe())->source.ends_with("with which all stages are busy: 62.5 %"));
  CHECK_FALSE(forecast::most_working(alternating(2))->source.ends_with(" %"));
  CHECK(forecast::most_working(zero_bubble())->share == Approx(24.0 / 27));
  Pipeline folded = alternating(2);
  std::swap(folded.chunks[4].stage, folded.chunks[7].stage);
  CHECK(most_working(folded) == "unknown");
}

TEST_CASE("a stage that waits longer works a smaller share of the time", "[timeline]") {
  const Timeline timeline =
      forecast::timeline_of(gpipe(), [](const plan::Action& action) { return action.chunk == 0 ? 2.0 : 1.0; });
  CHECK(timeline.end == 38);
  CHECK(timeline.working() == Approx((2 + 1 + 1 + 1) * 16.0 / (4 * 38)));
}

TEST_CASE("a stage of 1F1B keeps at most as many microbatches as there are stages", "[timeline]") {
  const Pipeline one = alternating(1);
  const Pipeline zero = zero_bubble();
  for (const partition::StageId stage : one.actions.ids()) {
    CHECK(forecast::most_live_forwards(one.actions[stage]) == static_cast<int>(p - stage.index()));
    CHECK(forecast::most_live_forwards(zero.actions[stage]) <= static_cast<int>(p));
    CHECK(forecast::most_live_forwards(gpipe().actions[stage]) == static_cast<int>(m));
  }
}

TEST_CASE("an action begins when its stage is free and its inputs are there", "[timeline]") {
  const Pipeline two = pipeline(2, 1, [](std::uint32_t stage) { return sdk::gpipe_actions(stage, 1); });
  const Timeline timeline = forecast::timeline_of(
      two, [](const plan::Action& action) { return action.kind == plan::Action::Kind::forward ? 1.0 : 3.0; });
  CHECK(timeline.end == 8);
  CHECK(timeline.stages[partition::StageId(1)][0].begin == 1);
  CHECK(timeline.stages[partition::StageId(1)][1].begin == 2);
  CHECK(timeline.stages[partition::StageId(0)][1].begin == 5);
  CHECK(timeline.bubble(partition::StageId(0)) == 1);
}

TEST_CASE("a pipeline is drawn with a row for each stage, below a legend", "[timeline]") {
  const Pipeline two = pipeline(2, 1, [](std::uint32_t stage) { return sdk::gpipe_actions(stage, 2); });
  CHECK(forecast::draw(forecast::timeline_of(two, forecast::unit_cost), 100, 8) ==
        "F forward, B backward of a microbatch, whose number follows; . idle\n"
        "bubble: idle time in % of working time\n"
        "stage 0   F0 F1 .........B0    B1      bubble 50 %\n"
        "stage 1   ...F0 F1 B0    B1    ......  bubble 50 %\n");
}

namespace {

/// The cells of a row that are labels, without the idle time between them.
std::string drawn_rows(const std::string& drawing) { return drawing.substr(drawing.find("stage 0")); }

}  // namespace

TEST_CASE("without room for numbers cells have letters, and without room for all time its middle is left out",
          "[timeline]") {
  const Timeline timeline = forecast::timeline_of(alternating(1), forecast::unit_cost);  // 33 units
  const std::string letters = forecast::draw(timeline, 40, 8);
  CHECK(letters.find("(no room for its number)") != std::string::npos);
  CHECK(letters.find("stage 3   ...FB FB FB FB FB FB FB FB ......  bubble 37.5 %\n") != std::string::npos);

  const std::string ends = forecast::draw(timeline, 23, 8);
  CHECK(ends.find("; shown: the first and the last 30 % of the time\n") != std::string::npos);
  CHECK(drawn_rows(ends).find("stage 3   ...FB FB F … ~FB ......  bubble 37.5 %\n") != std::string::npos);
}

TEST_CASE("chunks have numbers, and if there are many stages only some are drawn", "[timeline]") {
  const std::string chunks = forecast::draw(forecast::timeline_of(alternating(2), forecast::unit_cost), 1000, 8);
  CHECK(chunks.find("number follows; before it the chunk; . idle") != std::string::npos);
  CHECK(chunks.find("stage 0   0F0 0F1 0F2 0F3 4F0 ") != std::string::npos);
  const std::string some = forecast::draw(forecast::timeline_of(gpipe(), forecast::unit_cost), 100, 2);
  CHECK(some.find("one of 2 stages is shown\n") != std::string::npos);
  CHECK(some.find("\nstage 2 ") != std::string::npos);
  CHECK(some.find("\nstage 1 ") == std::string::npos);
}

TEST_CASE("an action too short for its name takes no room from the others", "[timeline]") {
  const Pipeline two = pipeline(2, 1, [](std::uint32_t stage) { return sdk::gpipe_actions(stage, 1); });
  const std::string drawing = forecast::draw(
      forecast::timeline_of(two, [](const plan::Action& action) { return action.chunk == 0 ? 1.0 : 1.0 / 3; }), 100, 8);
  CHECK(drawing.find(": actions too short for their name") == std::string::npos);  // a third is wide enough to decide
  const std::string tiny = forecast::draw(
      forecast::timeline_of(two, [](const plan::Action& action) { return action.chunk == 0 ? 1.0 : 1e-9; }), 100, 8);
  CHECK(tiny.find("stage 0   F0 B0   bubble") != std::string::npos);
}
