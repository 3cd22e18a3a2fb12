#include "core/metrics/trace.h"

#include <array>
#include <boost/json.hpp>

#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun;
using metrics::JsonField;
using metrics::Trace;

namespace json = boost::json;

namespace {

Trace small(std::int64_t process) {
  Trace trace(process, "rank \"one\"");
  trace.name_row(1, "compute");
  const std::array<JsonField, 3> arguments = {{{"op", "matmul"}, {"flops", std::int64_t{12}}, {"share", 0.5}}};
  trace.add({.row = 1,
             .name = "a",
             .category = "compute",
             .begin = 1'234'567'890'123,
             .end = 1'234'567'891'000,
             .arguments = arguments});
  trace.add({.row = 1,
             .name = "b",
             .category = "wait",
             .begin = 1'234'567'892'000,
             .end = 1'234'567'892'000,
             .arguments = {}});
  return trace;
}

}  // namespace

TEST_CASE("a trace is JSON of complete events and of names for process and rows", "[metrics]") {
  CHECK(small(3).text() == R"({"displayTimeUnit":"ms","traceEvents":[
{"ph":"M","pid":3,"tid":0,"name":"process_name","args":{"name":"rank \"one\""}},
{"ph":"M","pid":3,"tid":0,"name":"process_sort_index","args":{"sort_index":3}},
{"ph":"M","pid":3,"tid":1,"name":"thread_name","args":{"name":"compute"}},
{"ph":"M","pid":3,"tid":1,"name":"thread_sort_index","args":{"sort_index":1}},
{"ph":"X","pid":3,"tid":1,"name":"a","cat":"compute","ts":1234567890.123,"dur":0.877,"args":{"op":"matmul","flops":12,"share":0.5}},
{"ph":"X","pid":3,"tid":1,"name":"b","cat":"wait","ts":1234567892.000,"dur":0.000,"args":{}}
]}
)");
}

TEST_CASE("traces of several processes become one", "[metrics]") {
  std::string all;
  for (const std::int64_t process : {1, 2, 3}) {
    metrics::join_trace(all, small(process).text(), "trace");
  }
  const json::array events = json::parse(all).at("traceEvents").as_array();
  REQUIRE(events.size() == 18);
  for (std::size_t e = 0; e < events.size(); ++e) {
    CHECK(events[e].at("pid").as_int64() == static_cast<std::int64_t>(1 + e / 6));
  }
}

namespace {

/// A trace with one span, which is one end of a message.
std::string end_of_message(std::int64_t process, std::string_view end, std::string_view message, std::int64_t begin,
                           std::int64_t until) {
  Trace trace(process, "rank");
  const std::array<JsonField, 2> arguments = {{{"op", end}, {end, message}}};
  trace.add({.row = 4, .name = end, .category = "communication", .begin = begin, .end = until, .arguments = arguments});
  return trace.text();
}

/// The events of the joined traces, without the names of processes at the beginning.
json::array joined(const std::vector<std::string>& traces) {
  std::string all;
  for (const std::string& each : traces) {
    metrics::join_trace(all, each, "trace");
  }
  json::array found;
  const json::value trace = json::parse(metrics::with_arrows(all));
  for (const json::value& event : trace.at("traceEvents").as_array()) {
    if (event.at("ph") != "M") {
      found.push_back(event);
    }
  }
  return found;
}

}  // namespace

TEST_CASE("an arrow leads from the send of a message to its receive", "[metrics]") {
  // The receiver began to receive before the message was sent.
  const json::array events =
      joined({end_of_message(1, "receives", "m", 1000, 9000), end_of_message(2, "sends", "m", 5000, 7000)});

  CHECK(json::value(events) == json::parse(R"([
    {"ph":"X","pid":1,"tid":4,"name":"receives","cat":"communication","ts":5.0,"dur":4.0,"args":{"op":"receives","receives":"m"}},
    {"ph":"X","pid":2,"tid":4,"name":"sends","cat":"communication","ts":5.0,"dur":2.0,"args":{"op":"sends","sends":"m"}},
    {"ph":"s","pid":2,"tid":4,"name":"message","cat":"message","id":1,"ts":5.0},
    {"ph":"f","bp":"e","pid":1,"tid":4,"name":"message","cat":"message","id":1,"ts":8.999}])"));
}

TEST_CASE("a message has no arrow if one of its ends is missing or it seems to arrive before it was sent",
          "[metrics]") {
  CHECK(joined({end_of_message(1, "receives", "m", 1000, 9000), end_of_message(2, "sends", "n", 5000, 7000)}).size() ==
        2);
  const json::array apart =
      joined({end_of_message(1, "receives", "m", 1000, 5000), end_of_message(2, "sends", "m", 5000, 7000)});
  REQUIRE(apart.size() == 2);
  CHECK(apart[0].at("ts") == 1.0);
  CHECK(joined({end_of_message(1, "sends", "m", 1, 2)}).size() == 1);
}

TEST_CASE("a file that is not a trace cannot be joined", "[metrics]") {
  const std::string text = small(1).text();
  for (const std::string& bad : {std::string(), std::string("{}"), text.substr(0, text.size() - 1), text.substr(1)}) {
    std::string all = text;
    CHECK_THAT(test::error_of([&] { metrics::join_trace(all, bad, "run/trace/rank-1.json"); }),
               Catch::Matchers::Contains("run/trace/rank-1.json: this is no trace"));
    CHECK(all == text);
  }
}
