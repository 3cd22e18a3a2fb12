// Plugins that end their process or never return, in every place and every command that loads them. The message names
// the plugin, no command succeeds, and no rank is left.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/processes.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Contains;

namespace {

struct Kind {
  std::string name;
  std::string said;  ///< what the message says about the end
};

const std::vector<Kind> endings = {{"SIGSEGV", "it crashed by signal 11 (SIGSEGV)"},
                                   {"overflow", "it crashed by signal 11 (SIGSEGV)"},
                                   {"SIGTRAP", "it crashed by signal 5 (SIGTRAP)"},
                                   {"abort", "it crashed by signal 6 (SIGABRT)"},
                                   {"exit", "it called exit(0), which no plugin may"},
                                   {"quick_exit", "it called quick_exit(0), which no plugin may"},
                                   {"_exit", "it called _exit(0), which no plugin may"},
                                   {"hang", "it did not come back within 1000 ms"}};

/// Whether the end is noticed: sanitizers handle signals and the C library's _exit themselves.
bool is_seen(const Kind& kind) { return !sanitized || kind.name == "exit" || kind.name == "hang"; }

/// A job whose plugins misbehave. A shell runs its commands.
class Misbehaving {
 public:
  Misbehaving() {
    std::filesystem::create_directory(plugins());
    for (const char* file :
         {"shardrun_model_misbehaving.so", "shardrun_strategy_misbehaving.so", "shardrun_transport_misbehaving.so"}) {
      std::filesystem::copy_file(std::filesystem::path(SHARDRUN_OUTSIDE_STRATEGIES) / file, plugins() / file);
    }
  }

  [[nodiscard]] std::filesystem::path plugins() const { return job_.path() / "plugins"; }
  [[nodiscard]] const std::filesystem::path& path() const { return job_.path(); }

  /// JOB in `command` stands for the job file and its settings.
  [[nodiscard]] Ended run(const std::string& place, const std::string& kind, std::string command,
                          const std::string& settings) const {
    const std::string job = (job_.path() / "job.ini").string() + " --set plugins.path=" + plugins().string();
    const std::size_t at = command.find("JOB");
    if (at != std::string::npos) {
      command.replace(at, 3, job + settings);
    }
    return run_script(job_.path(), "ulimit -c 0; export SHARDRUN_PLUGIN_TIMEOUT=1 SHARDRUN_MISBEHAVE='" + place + " " +
                                       kind + "'; exec \"$0\" " + command);
  }

 private:
  JobFolder job_;
};

void check_named(const Misbehaving& job, const std::string& plugin, const std::string& place, const Kind& kind,
                 const std::string& command, const std::string& settings) {
  INFO(command << ": " << kind.name << " in " << place);
  const Ended ended = job.run(place, kind.name, command, settings);
  CHECK(ended.code != 0);
  CHECK_THAT(ended.err + ended.out,
             Contains(plugin + " plugin 'misbehaving' (" + job.plugins().string() + "/") && Contains(kind.said));
  for (const pid_t process : ranks_below(job.path())) {  // they are killed, but perhaps not gone yet
    CHECK(ends_within(process, 10'000));
  }
}

const std::string with_strategy = " --set job.strategy=misbehaving";
const std::string with_transport = " --set job.strategy=dp --set job.ranks=2 --set job.transport=misbehaving";

}  // namespace

TEST_CASE("a strategy that ends the process or hangs is named, in every function", "[misbehaving]") {
  const Misbehaving job;
  for (const std::string place : {"constructor", "open", "options", "make_plan"}) {
    for (const Kind& kind : endings) {
      if (is_seen(kind) && (kind.name != "hang" || place == "make_plan" || place == "constructor")) {
        check_named(job, "strategy", place, kind, "run JOB", with_strategy);
      }
    }
  }
}

namespace {

/// A job of the model that misbehaves, over two ranks.
Ended run_model(const Misbehaving& job, const std::string& place, const std::string& kind) {
  write_file(job.path() / "model.ini",
             "[job]\ntask = iterate\nranks = 2\nstrategy = named\n[sharding]\nx = space\n[plugins]\npath = plugins\n"
             "[model]\nname = misbehaving\n[iterate]\nsteps = 2\n");
  return run_script(job.path(), "ulimit -c 0; export SHARDRUN_PLUGIN_TIMEOUT=1 SHARDRUN_MISBEHAVE='" + place + " " +
                                    kind + "'; exec \"$0\" run model.ini");
}

}  // namespace

TEST_CASE("a model that ends the process or hangs is named, in every function", "[misbehaving]") {
  const Misbehaving job;
  CHECK(run_model(job, "none", "none").code == 0);
  for (const std::string place : {"constructor", "open", "declare", "iterate"}) {
    for (const Kind& kind : endings) {
      if (!is_seen(kind) || (kind.name == "hang" && place != "declare")) {
        continue;
      }
      INFO(kind.name << " in " << place);
      const Ended ended = run_model(job, place, kind.name);
      CHECK(ended.code != 0);
      CHECK_THAT(ended.err,
                 Contains("model plugin 'misbehaving' (" + job.plugins().string() + "/") && Contains(kind.said));
    }
  }
}

TEST_CASE("a model that writes another graph on another rank is named", "[misbehaving]") {
  const Misbehaving job;
  const Ended ended = run_model(job, "graph", "impure");
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("model misbehaving made another graph on rank 1") &&
                            Contains("a graph must follow from the job alone"));
}

TEST_CASE("every command names a strategy that ends it", "[misbehaving]") {
  const Misbehaving job;
  for (const std::string command : {"plan JOB", "verify JOB", "show-sharding JOB '*'", "run JOB --dump plan"}) {
    for (const Kind& kind : endings) {
      if (kind.name == "SIGSEGV" || kind.name == "exit" || kind.name == "_exit") {
        if (is_seen(kind)) {
          check_named(job, "strategy", "constructor", kind, command, with_strategy);
          check_named(job, "strategy", "make_plan", kind, command, with_strategy);
        }
      }
    }
  }
}

TEST_CASE("a plugin may start processes that end by themselves", "[misbehaving]") {
  const Misbehaving job;
  for (const std::string place : {"open", "make_plan"}) {
    const Ended ended = job.run(place, "child", "run JOB", with_strategy);
    CHECK(ended.code == 0);
    CHECK_THAT(ended.err, !Contains("which no plugin may"));
  }
}

TEST_CASE("a transport that ends the process or hangs is named, on launcher and ranks", "[misbehaving]") {
  const Misbehaving job;
  for (const std::string place : {"constructor", "configure", "opening"}) {
    for (const Kind& kind : endings) {
      if (is_seen(kind) && (kind.name != "hang" || place != "opening")) {
        check_named(job, "transport", place, kind, "run JOB", with_transport);
      }
    }
  }
}

TEST_CASE("processes that a plugin started in a rank end when the rank is killed", "[misbehaving]") {
  const Misbehaving job;
  const Ended ended = job.run("opening", "fork_SIGKILL", "run JOB", with_transport);
  CHECK(ended.code != 0);
  for (const pid_t process : ranks_below(job.path())) {
    CHECK(ends_within(process, 10'000));
  }
}

TEST_CASE("bench names a transport that ends it", "[misbehaving]") {
  const Misbehaving job;
  for (const std::string place : {"constructor", "opening"}) {
    for (const Kind& kind : endings) {
      if (is_seen(kind) && (kind.name == "SIGSEGV" || kind.name == "exit")) {
        INFO(kind.name << " in " << place);
        const Ended ended = run_script(job.path(), "ulimit -c 0; export SHARDRUN_MISBEHAVE='" + place + " " +
                                                       kind.name + "' SHARDRUN_PLUGIN_PATH='" + job.plugins().string() +
                                                       "'; exec \"$0\" bench --transport misbehaving --ranks 2");
        CHECK(ended.code != 0);
        CHECK_THAT(ended.err + ended.out, Contains("transport plugin 'misbehaving'") && Contains(kind.said));
      }
    }
  }
}

TEST_CASE("the list names plugins that cannot be loaded, and has all others", "[misbehaving]") {
  const Misbehaving job;
  std::vector<Kind> kinds = endings;
  kinds.push_back({"flood", "it crashed by signal 6 (SIGABRT)"});
  kinds.push_back({"system_call", "the process that it was tried in exited with code 0"});
  for (const std::string place : {"constructor", "open", "options"}) {
    for (const Kind& kind : kinds) {
      if (kind.name == "hang" && place != "constructor") {
        continue;
      }
      INFO(kind.name << " in " << place);
      const Ended ended = job.run(place, kind.name, "plugins JOB", "");
      CHECK(ended.code == 0);
      CHECK_THAT(ended.out, Contains("strategy misbehaving cannot be used") &&
                                Contains("transport misbehaving cannot be used") && Contains("strategy single 1.0") &&
                                Contains("transport shm 1.0"));
      if (is_seen(kind) || kind.name == "system_call") {
        CHECK_THAT(ended.out, Contains(kind.said));
      }
      CHECK(ended.err == "");
      for (const pid_t process : ranks_below(job.path())) {
        CHECK(ends_within(process, 10'000));
      }
    }
  }
}

TEST_CASE("plugins check says how a plugin ended its processes", "[misbehaving]") {
  const Misbehaving job;
  const std::vector<std::pair<std::string, std::string>> checks = {{"strategy", "option"}, {"transport", "barrier"}};
  for (const auto& [plugin, word] : checks) {
    const std::string file = (job.plugins() / ("shardrun_" + plugin + "_misbehaving.so")).string();
    for (const Kind& kind : endings) {
      if (!is_seen(kind) || kind.name == "hang") {
        continue;
      }
      for (const std::string place : {"constructor", "open"}) {
        INFO(plugin << " " << kind.name << " in " << place);
        const Ended ended = job.run(place, kind.name, "plugins check --case " + word + " " + file, "");
        CHECK(ended.code == 1);
        CHECK_THAT(ended.out, Contains("FAILED") && !Contains("all is well"));
        CHECK_THAT(ended.err + ended.out, Contains(plugin + " plugin 'misbehaving'") && Contains(kind.said));
      }
    }
  }
}

TEST_CASE("control characters in text of plugins are escaped", "[misbehaving]") {
  const Misbehaving job;
  const Ended list = job.run("nowhere", "", "plugins JOB", "");
  CHECK(list.code == 0);
  CHECK_THAT(list.out, Contains("strategy misbehaving 0.1\\x1b[1m (ABI") &&
                           Contains("A help text with \\x1b[31mcolour\\x1b[0m and\\x0aa second line."));

  const Ended refused = job.run("nowhere", "", "run JOB", with_strategy + " --set strategy.loud=true");
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("a reason\\x1b]0;with a title\\x07\\x0ashardrun: all is well"));

  const Ended coloured = run_script(
      job.path(), "export SHARDRUN_COLOUR=1; exec \"$0\" run job.ini --set plugins.path=" + job.plugins().string() +
                      with_transport);
  CHECK(coloured.code == 0);
  CHECK_THAT(coloured.out, Contains("[1] \\x1b[31mred\\x1b[0m \\xff\n"));
  for (const std::string& text : {list.out, refused.err, coloured.out, coloured.err}) {
    CHECK(text.find('\x1b') == std::string::npos);
  }
  CHECK(read_file(job.path() / "runs/job/log/rank-1.log").find('\x1b') == std::string::npos);
}
