#include "core/forecast/step_trace.h"

#include <boost/json.hpp>
#include <tuple>

#include "tests/support/catch.h"

using namespace shardrun;
using partition::Instruction;

namespace json = boost::json;

namespace {

const graph::Op multiplies{.name = "matmul"};
const graph::Op gather{.name = "all_gather"};

Instruction traced(Instruction::Kind kind, std::int32_t transfer = -1) {
  Instruction made{.kind = kind, .op = transfer < 0 ? &multiplies : &gather, .name = "product"};
  made.transfer = partition::TransferId(transfer);
  made.flops = transfer < 0 ? 8 : 0;
  made.layer = transfer < 0 ? 1 : -1;
  made.action = partition::ActionId(transfer < 0 ? 1 : -1);
  return made;
}

partition::Transfer transfer(const char* name) {
  return {.name = name,
          .collective = partition::Collective::all_gather,
          .axis = mesh::AxisId(0),
          .send = {.elements = 2},
          .recv = {.elements = 4},
          .recv_counts = {2, 2}};
}

/// Two transfers under way while something is computed, on the second of two ranks.
partition::Programs programs() {
  using enum Instruction::Kind;
  partition::Program micro{.function = "micro", .role = graph::Role::repeated, .rows = 3, .call_rows = {3}};
  micro.buffers = {{.name = "product", .bytes = 12}};
  micro.transfers = {transfer("a"), transfer("b")};
  micro.instructions = {traced(start, 0), traced(start, 1), traced(compute), traced(wait, 1), traced(wait, 0)};
  micro.instructions[2].outputs = {partition::BufferId(0)};
  return {.mesh = {{{"data", 2}}},
          .rank = 1,
          .programs = {micro},
          .actions = {{plan::Action::Kind::forward, 0, 0}, {plan::Action::Kind::backward, 0, 0}}};
}

json::array events_of(const std::vector<forecast::TracedStep>& steps, const runtime::Timeline& timeline) {
  const std::string text = forecast::trace_of(steps, timeline, programs()).text();
  return json::parse(text).at("traceEvents").as_array();
}

std::vector<json::object> named(const json::array& events, const std::string& name) {
  std::vector<json::object> found;
  for (const json::value& event : events) {
    if (event.at("name").as_string() == name.c_str()) {
      found.push_back(event.as_object());
    }
  }
  return found;
}

}  // namespace

TEST_CASE("overlapping transfers have rows of their own, from start to wait", "[metrics]") {
  runtime::Timeline timeline(5);
  for (std::uint32_t i = 0; i < 5; ++i) {
    timeline.add({.program = 0, .instruction = i, .begin = 1000 + 2000 * i, .end = 2000 + 2000 * i});
  }

  const json::array events = events_of({{.step = 7, .begin = 0, .end = 20000}}, timeline);

  const json::object step = named(events, "step 7").at(0);
  CHECK(step.at("pid") == 2);
  CHECK(step.at("dur") == 20.0);
  CHECK(named(events, "micro").at(0).at("ts") == 1.0);
  CHECK(named(events, "micro").at(0).at("dur") == 9.0);
  CHECK(named(events, "product").at(0).at("args") ==
        json::parse(
            R"({"op": "matmul", "function": "micro", "phase": "forward", "action": "B", "chunk": 0, "microbatch": 0,
                       "layer": 1, "flops": 8, "bytes": 12, "step": 7})"));
  CHECK(named(events, "0B0").at(0).at("ts") == 5.0);
  CHECK(named(events, "0B0").at(0).at("dur") == 1.0);
  const json::object b = named(events, "all_gather of b").at(0);
  CHECK(b.at("ts") == 3.0);
  CHECK(b.at("dur") == 5.0);
  const json::object a = named(events, "all_gather of a").at(0);
  CHECK(a.at("ts") == 1.0);
  CHECK(a.at("dur") == 9.0);
  CHECK(a.at("args") == json::parse(R"({"op": "all_gather", "function": "micro", "axis": "data", "bytes": 16,
                                        "sent_bytes": 8, "action": "update", "step": 7})"));
  CHECK(a.at("tid") != b.at("tid"));
  std::vector<std::string> rows;
  for (const json::object& row : named(events, "thread_name")) {
    rows.push_back(json::value_to<std::string>(row.at("args").at("name")));
  }
  CHECK(rows == std::vector<std::string>{"compute", "collectives data", "collectives data (2)"});
}

TEST_CASE("a transfer has the duration that the transport reports, within its start and its wait", "[metrics]") {
  for (const auto& [begun, ended, ts, duration] :
       {std::tuple{1500, 2500, 1.5, 1.0}, {500, 2500, 1.0, 1.5}, {1500, 9000, 1.5, 2.5}}) {
    runtime::Timeline timeline(2);
    timeline.add({.program = 0, .instruction = 0, .begin = 1000, .end = 1100});
    timeline.add(
        {.program = 0, .instruction = 4, .begin = 3000, .end = 4000, .transfer_begun = begun, .transfer_ended = ended});

    const json::object a = named(events_of({{.step = 1, .begin = 0, .end = 5000}}, timeline), "all_gather of a").at(0);

    CHECK(a.at("ts") == ts);
    CHECK(a.at("dur") == duration);
  }
}

TEST_CASE("each call of micro is a microbatch, numbered from 0 in each step", "[metrics]") {
  runtime::Timeline timeline(3);
  for (int call = 0; call < 3; ++call) {
    timeline.add({.program = 0, .instruction = 2, .begin = 1000 + 1000 * call, .end = 1500 + 1000 * call});
  }

  const json::array events = events_of(
      {{.step = 1, .begin = 0, .end = 2900}, {.step = 2, .begin = 2900, .end = 5000, .first_span = 2}}, timeline);

  CHECK(named(events, "0B0").size() == 2);
  CHECK(named(events, "0B1").size() == 1);
}

TEST_CASE("a transfer that nothing waited for lasts to the end of its step", "[metrics]") {
  runtime::Timeline timeline(3);
  timeline.add({.program = 0, .instruction = 0, .begin = 1000, .end = 2000});
  timeline.add({.program = 0, .instruction = 0, .begin = 9000, .end = 9500});

  const json::array events = events_of(
      {{.step = 1, .begin = 0, .end = 5000}, {.step = 2, .begin = 8000, .end = 12000, .first_span = 1}}, timeline);

  const std::vector<json::object> transfers = named(events, "all_gather of a");
  REQUIRE(transfers.size() == 2);
  CHECK(transfers[0].at("dur") == 4.0);
  CHECK(transfers[1].at("dur") == 3.0);
  CHECK(transfers[1].at("args").at("state") == "not complete when the recording ended");
}

TEST_CASE("a transfer whose wait failed is not said to be complete", "[metrics]") {
  runtime::Timeline timeline(2);
  timeline.add({.program = 0, .instruction = 0, .begin = 1000, .end = 2000});
  timeline.add({.program = 0, .instruction = 4, .begin = 2000, .end = 4000, .failed = true});

  const json::array events = events_of({{.step = 1, .begin = 0, .end = 5000}}, timeline);

  CHECK(named(events, "wait for all_gather of a").at(0).at("args").at("state") == "failed");
  REQUIRE(named(events, "all_gather of a").size() == 1);
  CHECK(named(events, "all_gather of a")[0].at("args").at("state") == "not complete when the recording ended");
}

TEST_CASE("events that did not fit into the recording are counted in its last step", "[metrics]") {
  runtime::Timeline timeline(1);
  for (int i = 0; i < 3; ++i) {
    timeline.add({.program = 0, .instruction = 2, .begin = 1000, .end = 2000});
  }

  const json::array events = events_of({{.step = 1, .begin = 0, .end = 5000}}, timeline);

  CHECK(named(events, "step 1").at(0).at("args").at("instructions_left_out") == 2);
  CHECK(named(events, "product").size() == 1);
}
