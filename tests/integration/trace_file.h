#pragma once

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/program.h"
#include "tests/support/catch.h"

namespace shardrun::test {

struct TraceEvent {
  std::int64_t process;
  std::int64_t row;
  std::int64_t begin;  ///< nanoseconds
  std::int64_t end;
  std::string name;
  std::string category;
  boost::json::object arguments;

  [[nodiscard]] bool has(const char* argument) const { return arguments.contains(argument); }
};

/// One end of an arrow.
struct ArrowEnd {
  std::int64_t process;
  std::int64_t row;
  std::int64_t time;  ///< nanoseconds
};

inline std::string event_text(const boost::json::value& value) { return boost::json::value_to<std::string>(value); }

/// The complete events of a trace; the ends of its arrows; the names of its processes and rows, by their numbers.
struct Trace {
  std::vector<TraceEvent> events;
  std::map<std::int64_t, std::vector<ArrowEnd>> begins;  ///< by the arrow's number
  std::map<std::int64_t, std::vector<ArrowEnd>> ends;
  std::map<std::int64_t, std::string> processes;
  std::map<std::pair<std::int64_t, std::int64_t>, std::string> rows;
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> places;  ///< of rows

  [[nodiscard]] std::vector<TraceEvent> of(const std::string& category, std::int64_t process, std::int64_t step) const {
    std::vector<TraceEvent> found;
    std::copy_if(events.begin(), events.end(), std::back_inserter(found), [&](const TraceEvent& event) {
      return event.category == category && event.process == process && event.arguments.at("step") == step;
    });
    return found;
  }
};

inline Trace read_trace(const std::filesystem::path& path) {
  Trace trace;
  const boost::json::object file = read_json(path);
  for (const boost::json::value& event : file.at("traceEvents").as_array()) {
    const std::int64_t process = event.at("pid").as_int64();
    const std::int64_t row = event.at("tid").as_int64();
    const std::string name = event_text(event.at("name"));
    if (event.at("ph") == "M") {
      if (name == "process_name") {
        trace.processes[process] = event_text(event.at("args").at("name"));
      } else if (name == "thread_name") {
        trace.rows[{process, row}] = event_text(event.at("args").at("name"));
      } else if (name == "thread_sort_index") {
        trace.places[{process, row}] = event.at("args").at("sort_index").as_int64();
      }
      continue;
    }
    const auto begin = std::llround(1000 * event.at("ts").to_number<double>());
    if (event.at("ph") == "s" || event.at("ph") == "f") {
      const bool begins = event.at("ph") == "s";
      CHECK((begins || event.at("bp") == "e"));
      (begins ? trace.begins : trace.ends)[event.at("id").as_int64()].push_back({process, row, begin});
      continue;
    }
    REQUIRE(event.at("ph") == "X");
    const auto duration = std::llround(1000 * event.at("dur").to_number<double>());
    CHECK(duration >= 0);
    trace.events.push_back(
        {process, row, begin, begin + duration, name, event_text(event.at("cat")), event.at("args").as_object()});
  }
  return trace;
}

/// The number of events of a row that begin within another event and end after it.
inline int crossing(const Trace& trace) {
  int count = 0;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<TraceEvent>> rows;
  for (const TraceEvent& event : trace.events) {
    rows[{event.process, event.row}].push_back(event);
  }
  for (auto& [row, events] : rows) {
    CHECK(trace.rows.contains(row));
    std::stable_sort(events.begin(), events.end(), [](const TraceEvent& a, const TraceEvent& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    std::vector<std::int64_t> open;
    for (const TraceEvent& event : events) {
      while (!open.empty() && open.back() <= event.begin) {
        open.pop_back();
      }
      count += !open.empty() && event.end > open.back() ? 1 : 0;
      open.push_back(event.end);
    }
  }
  return count;
}

/// The steps that a process recorded.
inline std::set<std::int64_t> steps_of(const Trace& trace, std::int64_t process) {
  std::set<std::int64_t> steps;
  for (const TraceEvent& event : trace.events) {
    if (event.process == process && event.category == "step") {
      steps.insert(event.arguments.at("step").as_int64());
      CHECK(event.name == "step " + std::to_string(*steps.rbegin()));
    }
  }
  return steps;
}

}  // namespace shardrun::test
