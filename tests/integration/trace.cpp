#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>

#include "tests/integration/program.h"
#include "tests/integration/trace_file.h"
#include "tests/support/catch.h"

using namespace shardrun::test;

namespace json = boost::json;

namespace {

/// The event of communication in which an arrow's end lies.
const TraceEvent& at_end(const Trace& trace, const ArrowEnd& end) {
  const auto found = std::find_if(trace.events.begin(), trace.events.end(), [&](const TraceEvent& event) {
    return event.category == "communication" && event.process == end.process && event.row == end.row &&
           event.begin <= end.time && end.time < event.end;
  });
  REQUIRE(found != trace.events.end());
  return *found;
}

/// Checks that each message has one arrow, from where it was sent to where it was received.
void check_arrows(const Trace& trace) {
  std::map<std::string, int> sent;
  std::size_t received = 0;
  for (const TraceEvent& event : trace.events) {
    if (event.category == "communication" && event.arguments.at("op") == "send") {
      ++sent[event_text(event.arguments.at("sends"))];
    }
    received += event.has("receives") ? 1 : 0;
  }
  CHECK_FALSE(sent.empty());
  CHECK(received == sent.size());
  CHECK(trace.begins.size() == sent.size());
  CHECK(trace.ends.size() == sent.size());
  for (const auto& [number, begins] : trace.begins) {
    const auto ends = trace.ends.find(number);
    REQUIRE(ends != trace.ends.end());
    REQUIRE((begins.size() == 1 && ends->second.size() == 1));
    const TraceEvent& from = at_end(trace, begins[0]);
    const TraceEvent& to = at_end(trace, ends->second[0]);
    CHECK(from.arguments.at("sends") == to.arguments.at("receives"));
    CHECK(from.name.substr(from.name.find(' ')) == to.name.substr(to.name.find(' ')));
    CHECK(from.arguments.at("bytes") == to.arguments.at("bytes"));
    CHECK(from.process != to.process);
    CHECK(from.begin <= to.begin);  // readers take the end that begins first for the sender
    CHECK(++sent.at(event_text(from.arguments.at("sends"))) == 2);
  }
}

/// Checks that everything in a step belongs to an action of the schedule, or else to the update.
void check_actions(const Trace& trace) {
  int of_actions = 0;
  for (const TraceEvent& event : trace.events) {
    if (event.category == "step" || event.category == "function") {
      continue;
    }
    INFO(event.name);
    REQUIRE(event.has("action"));
    const std::string action = event_text(event.arguments.at("action"));
    const bool update = action == "update";
    CHECK(event.has("microbatch") == !update);
    CHECK(event.has("chunk") == !update);
    CHECK((update || action == "F" || action == "B" || action == "I" || action == "W"));
    // A copy to a state has no phase of its own.
    if (event.category == "compute" && event.arguments.at("op") != "copy" && !update) {
      const bool forward = event.arguments.at("phase") == "forward";
      CHECK((action == "F") == forward);
      CHECK((action != "I" || event.arguments.at("phase") == "backward_input"));
      CHECK((action != "W" || event.arguments.at("phase") == "backward_weight"));
    }
    CHECK((event.category != "compute" || event.arguments.at("function") == "micro" || update));
    of_actions += update ? 0 : 1;
  }
  CHECK(of_actions > 0);
}

/// An action in the form of `plan`: "0F2".
std::string action_of(const TraceEvent& event) {
  return std::to_string(event.arguments.at("chunk").as_int64()) + event_text(event.arguments.at("action")) +
         std::to_string(event.arguments.at("microbatch").as_int64());
}

/// The actions of a process in a step, in the order of time.
std::vector<std::string> actions_of(const Trace& trace, std::int64_t process, std::int64_t step) {
  std::vector<std::string> actions;
  std::int64_t end = 0;
  for (const TraceEvent& event : trace.of("action", process, step)) {
    CHECK(event.name == action_of(event));
    CHECK(event.begin >= std::exchange(end, event.end));
    actions.push_back(event.name);
  }
  return actions;
}

/// Rows of a process by name, in the order in which they are shown.
std::vector<std::string> rows_of(const Trace& trace, std::int64_t process) {
  std::map<std::int64_t, std::string> by_place;
  for (const auto& [row, place] : trace.places) {
    if (row.first == process) {
      CHECK(by_place.emplace(place, trace.rows.at(row)).second);
    }
  }
  std::vector<std::string> names;
  for (const auto& [place, name] : by_place) {
    if (name.find(" (") == std::string::npos) {  // only the first row of those for transfers in progress at once
      names.push_back(name);
    }
  }
  return names;
}

/// Seconds that a process computed and moved data in a step: the sum of each instruction's median over three steps.
double median_computing(const Trace& trace, std::int64_t process, std::int64_t first_step) {
  std::vector<std::vector<TraceEvent>> steps;
  for (std::int64_t step = first_step; step < first_step + 3; ++step) {
    std::vector<TraceEvent>& computed = steps.emplace_back(trace.of("compute", process, step));
    const std::vector<TraceEvent> moved = trace.of("move", process, step);
    computed.insert(computed.end(), moved.begin(), moved.end());
  }
  double sum = 0;
  for (std::size_t i = 0; i < steps[0].size(); ++i) {
    std::array<std::int64_t, 3> taken{};
    for (std::size_t s = 0; s < taken.size(); ++s) {
      taken[s] = steps[s].at(i).end - steps[s].at(i).begin;
    }
    std::sort(taken.begin(), taken.end());
    sum += static_cast<double>(taken[1]) * 1e-9;
  }
  return sum;
}

}  // namespace

TEST_CASE("a trace of a pipeline has every action, message and function", "[program]") {
  const JobFolder job;
  const Ended ended =
      job.run({"job.ranks=2", "job.strategy=pp", "job.trace=steps", "train.steps=6", "data.microbatches=3"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);

  const Trace trace = read_trace(job.path() / "run/trace.json");

  CHECK(crossing(trace) == 0);
  check_actions(trace);
  check_arrows(trace);
  for (const std::int64_t process : {1, 2}) {
    std::map<std::string, int> messages;
    for (const TraceEvent& event : trace.of("communication", process, 4)) {
      ++messages[event.name.substr(0, event.name.find(' '))];
    }
    CHECK(messages["send"] >= 3);
    CHECK(messages["receive"] >= 3);
    CHECK(trace.of("function", process, 4).size() == 2);
  }
}

TEST_CASE("each stage's actions are traced in the order of plan's timeline, with arrows between stages", "[program]") {
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{}, {"strategy.schedule=zb-h1"}, {"model.layers=4", "strategy.schedule=interleaved"}}) {
    DYNAMIC_SECTION((options.empty() ? "1f1b" : options.back())) {
      const JobFolder job;
      std::vector<std::string> how = {"job.ranks=2", "job.strategy=pp", "train.steps=4", "data.microbatches=4"};
      how.insert(how.end(), options.begin(), options.end());
      const Ended plan = run_program(job.path(), with_settings({"plan", "job.ini", "--json"}, how));
      INFO(plan.err);
      REQUIRE(plan.code == 0);
      how.emplace_back("job.trace=steps");
      REQUIRE(job.run(how).code == 0);

      const Trace trace = read_trace(job.path() / "run/trace.json");

      CHECK(crossing(trace) == 0);
      check_actions(trace);
      check_arrows(trace);
      const json::value timeline = json::parse(plan.out).at("timeline");
      for (const std::int64_t stage : {0, 1}) {
        std::vector<std::string> planned;
        for (const json::value& action : timeline.at("stages").at(static_cast<std::size_t>(stage)).as_array()) {
          planned.push_back(event_text(action.at("action")));
        }
        CHECK(actions_of(trace, stage + 1, 3) == planned);
        CHECK(actions_of(trace, stage + 1, 4) == planned);
        CHECK(rows_of(trace, stage + 1) ==
              std::vector<std::string>{"compute", "send pipe", "receive pipe", "collectives pipe"});
      }
    }
  }
}

TEST_CASE("without a pipeline each microbatch has its forward and its backward", "[program]") {
  const JobFolder job;
  const Ended ended =
      job.run({"job.ranks=2", "job.strategy=dp", "job.trace=steps", "train.steps=4", "data.microbatches=3"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);

  const Trace trace = read_trace(job.path() / "run/trace.json");

  check_actions(trace);
  std::vector<std::int64_t> microbatches;
  for (const TraceEvent& event : trace.of("function", 1, 3)) {
    if (event.name == "micro") {
      microbatches.push_back(event.arguments.at("microbatch").as_int64());
    } else {
      CHECK(event.arguments.at("action") == "update");
    }
  }
  CHECK(microbatches == std::vector<std::int64_t>{0, 1, 2});
  CHECK(trace.begins.empty());
  CHECK(actions_of(trace, 1, 3) == std::vector<std::string>{"0F0", "0B0", "0F1", "0B1", "0F2", "0B2"});
  CHECK(rows_of(trace, 1) == std::vector<std::string>{"compute", "collectives data"});
}

TEST_CASE("every rank's steps are in one trace, each transfer once", "[program]") {
  for (const char* strategy : {"dp", "tp", "zero3"}) {
    DYNAMIC_SECTION(strategy) {
      const JobFolder job;
      const Ended ended = job.run({"job.ranks=2", "job.strategy=" + std::string(strategy), "job.trace=steps",
                                   "job.trace_steps=2", "train.steps=6", "data.microbatches=2"});
      INFO(ended.err);
      REQUIRE(ended.code == 0);

      const Trace trace = read_trace(job.path() / "run/trace.json");

      CHECK(trace.processes == std::map<std::int64_t, std::string>{{1, "rank 0"}, {2, "rank 1"}});
      CHECK(crossing(trace) == 0);
      std::vector<std::multiset<std::string>> transfers;
      for (const std::int64_t process : {1, 2}) {
        CHECK(trace.rows.at({process, 1}) == "compute");
        CHECK(steps_of(trace, process) == std::set<std::int64_t>{3, 4});
        for (const std::int64_t step : {3, 4}) {
          std::multiset<std::string> names;
          for (const TraceEvent& event : trace.of("communication", process, step)) {
            CHECK(event.row > 1);
            CHECK_FALSE(event.arguments.contains("state"));
            CHECK(event.arguments.at("bytes").as_int64() > 0);
            names.insert(event.name);
          }
          CHECK_FALSE(names.empty());
          CHECK(names.size() == trace.of("start", process, step).size());
          CHECK(names.size() == trace.of("wait", process, step).size());
          CHECK(trace.of("function", process, step).size() == 3);
          transfers.push_back(std::move(names));
        }
      }
      CHECK(std::count(transfers.begin(), transfers.end(), transfers.front()) == 4);
      CHECK(read_trace(job.path() / "run/trace/rank-1.json").events.size() * 2 == trace.events.size());
    }
  }
}

TEST_CASE("the sent bytes in a trace equal the plan's", "[program]") {
  const JobFolder job;
  const std::vector<std::string> how = {"job.ranks=2", "job.strategy=dp", "train.steps=2"};
  std::vector<std::string> traced = how;
  traced.insert(traced.end(), {"job.trace=steps", "job.trace_first=1", "job.trace_steps=1"});
  REQUIRE(job.run(traced).code == 0);
  const Ended plan = run_program(job.path(), with_settings({"plan", "job.ini", "--json"}, how));

  std::int64_t sent = 0;
  for (const TraceEvent& event : read_trace(job.path() / "run/trace.json").of("communication", 1, 1)) {
    CHECK(event.arguments.at("axis") == "data");
    sent += event.arguments.at("sent_bytes").as_int64();
  }

  const json::value first_rank = json::parse(plan.out).at("ranks").at(0);
  std::int64_t planned = 0;
  for (const auto& [collective, bytes] : first_rank.at("sent_bytes").at("data").as_object()) {
    planned += bytes.to_number<std::int64_t>();
  }
  CHECK(sent == planned);
}

TEST_CASE("plan predicts with the times of a trace, and refuses the trace of another job", "[program]") {
  const JobFolder job;
  const std::vector<std::string> how = {"job.ranks=2", "job.strategy=pp", "train.steps=6", "data.microbatches=3"};
  std::vector<std::string> traced = how;
  traced.emplace_back("job.trace=steps");
  REQUIRE(job.run(traced).code == 0);
  const auto plan = [&](const std::string& more) {
    std::vector<std::string> settings = how;
    settings.insert(settings.end(), {"cluster.measured=run", more});
    return run_program(job.path(), with_settings({"plan", "job.ini", "--json"}, settings));
  };

  const Ended ended = plan("job.seed=2");
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const json::value planned = json::parse(ended.out);
  CHECK(planned.at("timeline").at("costs") == "measured");
  const json::value& predicted = planned.at("predicted");
  const double step = predicted.at("step_s").to_number<double>();
  CHECK(step > 0);
  const Trace trace = read_trace(job.path() / "run/trace.json");
  for (const std::int64_t rank : {0, 1}) {
    const json::value& stage = predicted.at("stages").at(static_cast<std::size_t>(rank));
    const auto seconds = [&](const char* what) { return stage.at(what).to_number<double>(); };
    CHECK(seconds("compute_s") == Approx(median_computing(trace, rank + 1, 3)));
    CHECK(seconds("compute_s") + seconds("exposed_communication_s") + seconds("waiting_s") == Approx(step));
  }

  for (const char* other : {"data.batch=9", "data.microbatches=2", "model.layers=3", "job.strategy=dp"}) {
    const std::string key = std::string(other).substr(0, std::string(other).find('='));
    std::vector<std::string> settings = {"cluster.measured=run/trace.json", other};
    std::copy_if(how.begin(), how.end(), std::back_inserter(settings),
                 [&](const std::string& setting) { return !setting.starts_with(key); });
    const Ended refused = run_program(job.path(), with_settings({"plan", "job.ini"}, settings));
    INFO(other << ": " << refused.err);
    CHECK(refused.code == 2);
    CHECK(refused.err.find("it is the trace of another job") != std::string::npos);
  }
}

TEST_CASE("the trace of a run with other element types is refused", "[program]") {
  const JobFolder job;
  const std::vector<std::string> how = {"job.ranks=2", "job.strategy=zero2", "train.precision=mixed"};
  std::vector<std::string> traced = how;
  traced.insert(traced.end(), {"train.steps=3", "job.trace=steps"});
  REQUIRE(job.run(traced).code == 0);
  for (const auto& [gradients, code] : {std::pair("float32", 0), std::pair("bfloat16", 2)}) {
    std::vector<std::string> settings = how;
    settings.insert(settings.end(), {"cluster.measured=run", std::string("train.gradients=") + gradients});
    const Ended ended = run_program(job.path(), with_settings({"plan", "job.ini"}, settings));
    INFO(gradients << ": " << ended.err);
    CHECK(ended.code == code);
    CHECK((ended.err.find("it is the trace of another job") != std::string::npos) == (code == 2));
  }
}

TEST_CASE("tracing changes no loss, and no trace is written unless asked for", "[program]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=5", "job.trace=steps"}).code == 0);
  const std::vector<double> losses = job.losses();
  CHECK(steps_of(read_trace(job.path() / "run/trace.json"), 1) == std::set<std::int64_t>{3, 4, 5});

  REQUIRE(job.run({"train.steps=5"}).code == 0);

  CHECK(job.losses() == losses);
  CHECK_FALSE(std::filesystem::exists(job.path() / "run/trace.json"));
  CHECK_FALSE(std::filesystem::exists(job.path() / "run/trace/rank-0.json"));
}

TEST_CASE("a run with fewer steps than its trace should have traces its last steps", "[program]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=2", "job.trace=steps"}).code == 0);
  CHECK(steps_of(read_trace(job.path() / "run/trace.json"), 1) == std::set<std::int64_t>{1, 2});
  REQUIRE(job.run({"train.steps=0", "job.trace=steps"}).code == 0);
  CHECK_FALSE(std::filesystem::exists(job.path() / "run/trace.json"));
}

TEST_CASE("a run that fails writes the trace of the steps it did", "[program]") {
  for (const int ranks : {1, 2}) {
    DYNAMIC_SECTION(ranks << " ranks") {
      const JobFolder job;
      const Ended ended = job.run({"train.learning_rate=1e30", "job.ranks=" + std::to_string(ranks), "job.strategy=dp",
                                   "job.trace=steps", "job.trace_first=1", "job.trace_steps=10"});
      CHECK(ended.code == 1);
      const Trace trace = read_trace(job.path() / "run/trace.json");
      CHECK(crossing(trace) == 0);
      CHECK(steps_of(trace, 1) == std::set<std::int64_t>{1, 2});
      CHECK(trace.processes.size() == static_cast<std::size_t>(ranks));
    }
  }
}
