#include <csignal>
#include <fstream>
#include <iterator>

#include "tests/integration/program.h"
#include "tests/support/catch.h"
#include "tests/support/text_job.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;

// What a person sees on a terminal.

namespace {

std::size_t count(std::string_view text, std::string_view word) {
  std::size_t found = 0;
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    ++found;
  }
  return found;
}

}  // namespace

TEST_CASE("an error is printed once, on a line of its own, below a live line too", "[program]") {
  const JobFolder job;
  const std::string ranks = GENERATE("1", "2");
  const Ended ended = run_on_terminal(
      job.path(),
      with_settings({"job.ini"}, {"job.ranks=" + ranks, ranks == "1" ? "job.strategy=single" : "job.strategy=dp",
                                  "train.learning_rate=1e20", "train.clip=1e30", "train.warmup=0"}));
  INFO(ended.out);
  CHECK(ended.code == 1);
  CHECK(count(ended.out, "not finite") == 1);
  CHECK_THAT(ended.out, Contains("\nshardrun: "));
  CHECK_THAT(ended.out, Contains("step 1/30"));
  CHECK_THAT(read_file(job.path() / "run/log/rank-0.log"), Contains("not finite"));
}

TEST_CASE("Ctrl-C is answered at once, by one rank and by several", "[program]") {
  const JobFolder job;
  const std::string ranks = GENERATE("1", "2");
  bool was_sent = false;
  const Ended ended = run_on_terminal(
      job.path(),
      with_settings({"job.ini"}, {"job.ranks=" + ranks, ranks == "1" ? "job.strategy=single" : "job.strategy=dp",
                                  "train.steps=1000000", "train.eval_every=0"}),
      [&](pid_t process, std::string_view out) {
        if (!was_sent && out.find("step 1/1000000") != std::string_view::npos) {
          was_sent = true;
          ::kill(process, SIGINT);
        }
      });
  INFO(ended.out);
  CHECK(ended.code == 128 + SIGINT);
  CHECK(count(ended.out, "stopping after this step or the next (Ctrl-C again ends it now)\r\n") == 1);
  CHECK_THAT(ended.out, Contains("stopped after "));
}

TEST_CASE("before the first step the screen says what the job is doing", "[program]") {
  const JobFolder job;
  const std::string ranks = GENERATE("1", "2");
  const Ended ended = run_on_terminal(
      job.path(),
      with_settings({"job.ini"}, {"job.ranks=" + ranks, ranks == "1" ? "job.strategy=single" : "job.strategy=dp"}));
  INFO(ended.out);
  CHECK(ended.code == 0);
  for (const char* activity : {"\rreading data", "\rcompiling", "\rfirst step"}) {
    CHECK_THAT(ended.out, Contains(activity));
  }
  CHECK((ended.out.find("waiting for 2 ranks to join") != std::string::npos) == (ranks == "2"));
}

TEST_CASE("an error that cannot be shown keeps its exit code", "[program]") {
  const TemporaryFolder folder;
  CHECK(run_script(folder.path(), "\"$0\" none.ini 2>/dev/full").code == 2);
  CHECK(run_script(folder.path(), "\"$0\" none.ini 2>&-").code == 2);
  CHECK(run_script(folder.path(), "\"$0\" --help >/dev/full").code == 1);
}

TEST_CASE("a run without standard streams writes its files, and no screen output into them", "[program]") {
  const std::string ranks = GENERATE("1", "2");
  const JobFolder job;
  const Ended ended =
      run_script(job.path(), "\"$0\" job.ini --set job.strategy=" + std::string(ranks == "1" ? "single" : "dp") +
                                 " --set job.ranks=" + ranks + " <&- >&- 2>&-");
  CHECK(ended.code == 0);
  CHECK(job.summary().at("status") == "finished");
  for (const char* name : {"run/.lock", "run/log/rank-0.log"}) {
    std::ifstream file(job.path() / name);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    CHECK_FALSE(text.empty());
    CHECK_THAT(text, !Contains("tok/s"));
  }
}

TEST_CASE("a run whose output is closed stops in order", "[program]") {
  const std::string ranks = GENERATE("1", "2");
  const JobFolder job;
  const Ended ended =
      run_script(job.path(), "{ \"$0\" job.ini --set job.strategy=" + std::string(ranks == "1" ? "single" : "dp") +
                                 " --set job.ranks=" + ranks +
                                 " --set train.steps=1000000 --set train.log_every=1; echo $? > code; } | head -n 3");
  INFO(ended.err);
  CHECK(read_file(job.path() / "code") == std::to_string(128 + SIGPIPE) + "\n");
  CHECK(job.summary().at("status") == "stopped");
  CHECK(std::filesystem::exists(job.path() / "run/weights.safetensors"));
}

TEST_CASE("a run whose output is closed saves its checkpoint, and can go on", "[program]") {
  const std::string ranks = GENERATE("1", "2");
  const JobFolder job;
  const Ended ended =
      run_script(job.path(), "{ \"$0\" job.ini --set job.strategy=" + std::string(ranks == "1" ? "single" : "dp") +
                                 " --set job.ranks=" + ranks +
                                 " --set train.steps=1000000 --set train.log_every=1 --set checkpoint.every=1000000"
                                 "; echo $? > code; } | head -n 3");
  INFO(ended.err);
  CHECK(read_file(job.path() / "code") == "75\n");
  CHECK_THAT(ended.err, Contains("to go on: shardrun run job.ini --set "));
  CHECK(job.summary().at("status") == "stopped");
  CHECK(job.summary().at("checkpoints").as_object().at("saved") == 1);
  CHECK(files_in(job.path() / "run/checkpoints") == 1);
  CHECK_FALSE(std::filesystem::exists(job.path() / "run/weights.safetensors"));
}

TEST_CASE("a file that may not grow is an error, not the end of the process", "[program]") {
  const TemporaryFolder folder;
  write_file(folder / "job.ini",
             "[job]\ntask = iterate\noutput = run\n[model]\nname = heat1d\ncells = 100\n[iterate]\nsteps = 5000\n");
  const Ended ended = run_script(folder.path(), "ulimit -f 100; \"$0\" job.ini");
  INFO(ended.err);
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("metrics.jsonl': File too large; the limit of a file's size (ulimit -f) is ") &&
                            Contains(" bytes: raise it"));
  const boost::json::object summary = read_json(folder / "run/summary.json");
  CHECK_THAT(std::string(summary.at("error").as_string()), Contains("metrics.jsonl': File too large"));
  CHECK(summary.at("saved") == "none");
}

TEST_CASE("a signal before anything has started ends the job", "[program]") {
  const std::string command = GENERATE("run", "verify");
  const std::string ranks = GENERATE("1", "2");
  const JobFolder job;
  const Ended ended =
      run_program(job.path(), with_settings({command, "job.ini"}, {"plugins.path=" SHARDRUN_OUTSIDE_STRATEGIES,
                                                                   "job.strategy=interrupting", "job.ranks=" + ranks}));
  CHECK(ended.code == 128 + SIGINT);
  CHECK(ended.err == "shardrun: stopped by SIGINT before anything was started\n");
  CHECK(ended.out.empty());
  CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
}
