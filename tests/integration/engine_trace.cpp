#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "tests/integration/engine_folder.h"
#include "tests/integration/trace_file.h"
#include "tests/support/catch.h"

// Traces of engines: what each rank did and when, in the form that traces of models have.

using namespace shardrun::test;

namespace {

std::set<std::string> names_of(const std::vector<TraceEvent>& events) {
  std::set<std::string> names;
  std::ranges::transform(events, std::inserter(names, names.end()), &TraceEvent::name);
  return names;
}

/// Checks that the calls of a function in a step consist of operations and computing, without a gap.
void check_covered(const Trace& trace, std::int64_t process, std::int64_t step, const std::string& function) {
  std::vector<TraceEvent> parts = trace.of("operation", process, step);
  const std::vector<TraceEvent> computed = trace.of("compute", process, step);
  parts.insert(parts.end(), computed.begin(), computed.end());
  std::ranges::sort(parts, {}, &TraceEvent::begin);
  int calls = 0;
  for (const TraceEvent& call : trace.of("function", process, step)) {
    if (call.name != function) {
      continue;
    }
    ++calls;
    std::int64_t at = call.begin;
    for (const TraceEvent& part : parts) {
      if (part.begin >= call.begin && part.end <= call.end) {
        CHECK(part.begin == at);
        CHECK(event_text(part.arguments.at("function")) == function);
        at = part.end;
      }
    }
    CHECK(at == call.end);
  }
  CHECK(calls > 0);
}

/// Checks that every message has an arrow from the rank that sent it.
void check_messages(const Trace& trace) {
  std::set<std::string> sent;
  std::set<std::string> received;
  for (const TraceEvent& event : trace.events) {
    if (event.has("sends")) {
      CHECK(sent.insert(event_text(event.arguments.at("sends"))).second);
      CHECK(trace.rows.at({event.process, event.row}).starts_with("send ranks"));
    }
    if (event.has("receives")) {
      CHECK(received.insert(event_text(event.arguments.at("receives"))).second);
      CHECK(trace.rows.at({event.process, event.row}).starts_with("receive ranks"));
    }
  }
  CHECK_FALSE(sent.empty());
  CHECK(sent == received);
  CHECK(trace.begins.size() == sent.size());
  CHECK(trace.ends.size() == sent.size());
}

}  // namespace

TEST_CASE("the trace of an iterated engine has its operations, waits and computing on every rank", "[engines]") {
  const EngineFolder folder;
  write_file(folder.path() / "engine.ini",
             "[job]\nengine = heat\ntask = iterate\noutput = engine\ntrace = steps\n[plugins]\npath = " +
                 std::string(SHARDRUN_EXAMPLE_ENGINES) + "\n[engine]\ncells = 9\n[iterate]\nsteps = 8\n");
  const Ended ended = folder.run("engine", {"job.ranks=3"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const std::string traced = read_file(folder.path() / "engine/state.safetensors");

  const Trace trace = read_trace(folder.path() / "engine/trace.json");

  CHECK(crossing(trace) == 0);
  check_messages(trace);
  for (const std::int64_t process : {1, 2, 3}) {
    CHECK(trace.processes.at(process) == "rank " + std::to_string(process - 1));
    CHECK((steps_of(trace, process) == std::set<std::int64_t>{3, 4, 5}));
    for (const std::int64_t step : {3, 4, 5}) {
      check_covered(trace, process, step, "step");
      std::set<std::string> expected;  // the names of exchanges with the neighbours on the line
      for (const std::int64_t other : {process - 1, process + 1}) {
        if (other >= 1 && other <= 3) {
          const std::string rank = "rank " + std::to_string(other - 1);
          expected.insert({"send to " + rank, "receive from " + rank, "wait for send to " + rank});
        }
      }
      CHECK((names_of(trace.of("operation", process, step)) == expected));
      for (const TraceEvent& operation : trace.of("operation", process, step)) {
        CHECK((operation.arguments.at("bytes") == 4) == operation.name.starts_with("send"));
      }
      CHECK(trace.of("start", process, step).size() == trace.of("wait", process, step).size());
      CHECK(trace.of("start", process, step).size() == trace.of("communication", process, step).size());
    }
  }

  REQUIRE(folder.run("engine", {"job.ranks=3", "job.trace=none"}).code == 0);
  CHECK(read_file(folder.path() / "engine/state.safetensors") == traced);
  CHECK_FALSE(std::filesystem::exists(folder.path() / "engine/trace.json"));
}

TEST_CASE("--profile has the operations of an engine, and what it computes", "[engines]") {
  const EngineFolder folder;
  const Ended ended =
      run_program(folder.path(), with_settings({"engine.ini", "--profile"}, {"job.ranks=2", "train.eval_every=100"}));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const std::size_t table = ended.out.find("function   op ");
  REQUIRE(table != std::string::npos);
  std::map<std::pair<std::string, std::string>, int> calls;
  std::istringstream lines(ended.out.substr(table));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string function;
    std::string op;
    words >> function >> op >> calls[{function, op}];
  }
  CHECK(calls.at({"forward", "compute"}) == 5 + 1);  // including the validation at the end
  CHECK(calls.at({"backward", "compute"}) == 5);
  CHECK(calls.at({"backward", "all_reduce"}) == 2 * 5);
  CHECK(calls.at({"update", "adamw"}) > 0);
}

TEST_CASE("the trace of an engine's training has its collectives and what the host computes", "[engines]") {
  const EngineFolder folder;
  const Ended ended = folder.run("engine", {"job.ranks=2", "job.trace=steps", "data.microbatches=2"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const Trace trace = read_trace(folder.path() / "engine/trace.json");
  CHECK(crossing(trace) == 0);
  for (const std::int64_t process : {1, 2}) {
    CHECK((steps_of(trace, process) == std::set<std::int64_t>{3, 4, 5}));
    const std::vector<TraceEvent> functions = trace.of("function", process, 4);
    std::set<std::string> expected = {"forward", "micro", "backward", "update"};
    if (process == 1) {
      expected.insert("norm");  // if there are copies of a gradient, the first counts
    }
    CHECK((names_of(functions) == expected));
    CHECK(std::ranges::count(functions, "forward", &TraceEvent::name) == 2);
    CHECK((names_of(trace.of("operation", process, 4)) == std::set<std::string>{"all_reduce", "the ranks' sums"}));
    check_covered(trace, process, 4, "forward");
    check_covered(trace, process, 4, "backward");
    for (const TraceEvent& transfer : trace.of("communication", process, 4)) {
      CHECK(trace.rows.at({process, transfer.row}) == "collectives ranks");
    }
  }
}

TEST_CASE("the trace of predictions has the records and the engine's operations between them", "[engines]") {
  const EngineFolder folder;
  std::string records;
  for (int i = 0; i < 6; ++i) {
    records += array_file("<f4", "(2, 6)", numbers(12));
  }
  write_file(folder.path() / "records.npy", records);
  write_file(
      folder.path() / "engine.ini",
      "[job]\nengine = tensor_parallel\ntask = infer\nranks = 2\noutput = engine\ntrace = steps\n[plugins]\n"
      "path = " +
          std::string(SHARDRUN_EXAMPLE_ENGINES) +
          "\n[engine]\nhidden = 5\n[infer]\nfeatures = 6\noutputs = 2\nfrom = records.npy\nto = predictions.npy\n");
  const Ended ended = folder.run("engine");
  INFO(ended.err);
  REQUIRE(ended.code == 0);

  const Trace trace = read_trace(folder.path() / "engine/trace.json");

  CHECK(crossing(trace) == 0);
  for (const std::int64_t process : {1, 2}) {
    CHECK((steps_of(trace, process) == std::set<std::int64_t>{3, 4, 5}));
    for (const std::int64_t step : {3, 4, 5}) {
      CHECK((names_of(trace.of("function", process, step)) ==
             std::set<std::string>{"read record", "infer", "write predictions"}));
      CHECK(names_of(trace.of("operation", process, step)).contains("all_reduce"));
      check_covered(trace, process, step, "infer");
    }
  }

  // The last record is the sixth.
  std::filesystem::remove(folder.path() / "predictions.npy");
  const Ended late = folder.run("engine", {"job.trace_first=6"});
  REQUIRE(late.code == 0);
  CHECK((steps_of(read_trace(folder.path() / "engine/trace.json"), 1) == std::set<std::int64_t>{6}));
  std::filesystem::remove(folder.path() / "predictions.npy");
  const Ended none = folder.run("engine", {"job.trace_first=7"});
  REQUIRE(none.code == 0);
  CHECK(none.out.find("no trace: 6 records predicted, and it begins with number 7 ([job] trace_first)") !=
        std::string::npos);
  CHECK_FALSE(std::filesystem::exists(folder.path() / "engine/trace.json"));
}
