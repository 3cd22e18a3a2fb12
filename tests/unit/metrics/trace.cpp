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

TEST_CASE("what is no trace is not joined to one", "[metrics]") {
  const std::string text = small(1).text();
  for (const std::string& bad : {std::string(), std::string("{}"), text.substr(0, text.size() - 1), text.substr(1)}) {
    std::string all = text;
    CHECK_THAT(test::error_of([&] { metrics::join_trace(all, bad, "run/trace/rank-1.json"); }),
               Catch::Matchers::Contains("run/trace/rank-1.json: this is no trace"));
    CHECK(all == text);
  }
}
