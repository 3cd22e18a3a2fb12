// Jobs and ranks that are suspended, and jobs that are asked to stop at every phase.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "tests/integration/processes.h"
#include "tests/integration/program.h"
#include "tests/support/attacks.h"
#include "tests/support/catch.h"
#include "tests/support/mpirun.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

std::vector<std::string> endless(const std::string& transport, int ranks, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"job.transport=" + transport, "job.ranks=" + std::to_string(ranks),
                           ranks == 1 ? "job.strategy=single" : "job.strategy=zero3", "train.steps=1000000"});
  return more;
}

std::size_t steps_of(const JobFolder& job) {
  std::ifstream file(job.path() / "run/metrics.jsonl");
  std::size_t lines = 0;
  for (std::string line; std::getline(file, line);) {
    ++lines;
  }
  return lines;
}

void await_steps(const JobFolder& job, std::size_t steps, pid_t launcher) {
  while (steps_of(job) < steps && !ends_within(launcher, 1)) {
  }
}

/// Runs a job, and `act` on another thread from the job's start on.
template <class Act>
Ended run_beside(const JobFolder& job, const std::vector<std::string>& settings, const Act& act) {
  std::future<void> acting;
  const Ended ended =
      run_program(job.path(), with_settings({"job.ini"}, settings), [&](pid_t launcher, std::string_view) {
        if (!acting.valid()) {
          acting = beside(launcher, [&act, launcher] { act(launcher); });
        }
      });
  acting.get();
  return ended;
}

/// The same for a job under mpirun; `act` gets the process of mpirun.
template <class Act>
Ended run_beside_mpirun(const JobFolder& job, int ranks, const std::vector<std::string>& settings, const Act& act) {
  std::string script = "exec env " + mpirun + " -n " + std::to_string(ranks) + " \"$0\" job.ini";
  for (const std::string& setting : settings) {
    script += " --set " + setting;
  }
  std::future<void> acting;
  const Ended ended = run_script(job.path(), script, [&](pid_t launcher, std::string_view) {
    if (!acting.valid()) {
      acting = beside(launcher, [&act, launcher] { act(launcher); });
    }
  });
  acting.get();
  return ended;
}

void stop_process(pid_t process) {
  kill(process, SIGSTOP);
  while (state_of(process) != 'T' && !ends_within(process, 1)) {
  }
}

/// Runs a job on a terminal, and `act` on another thread once the terminal shows `place`.
template <class Act>
Ended run_until(const JobFolder& job, const std::vector<std::string>& settings, const std::string& place,
                const Act& act) {
  std::future<void> acting;
  const Ended ended =
      run_on_terminal(job.path(), with_settings({"job.ini"}, settings), [&](pid_t launcher, std::string_view out) {
        if (!acting.valid() && out.find(place) != std::string_view::npos) {
          acting = beside(launcher, [&act, launcher] { act(launcher); });
        }
      });
  CAPTURE(ended.out);
  REQUIRE(acting.valid());
  acting.get();
  return ended;
}

Ended stop_at(const JobFolder& job, const std::vector<std::string>& settings, const std::string& place, int signal) {
  return run_until(job, settings, place, [signal](pid_t launcher) { kill(launcher, signal); });
}

std::string strategy(int ranks) { return ranks == 1 ? "job.strategy=single" : "job.strategy=dp"; }

}  // namespace

TEST_CASE("a job whose processes all stood still for longer than the timeout goes on", "[suspensions]") {
  constexpr int longer_than_timeouts = 3600;  // milliseconds; operations have two seconds more than the job
  std::vector<std::string> transports = {"shm", "tcp"};
  if (has_mpirun()) {
    transports.emplace_back("mpi");
  }
  for (const std::string& transport : transports) {
    for (int i = 0; i < attacks(1); ++i) {
      CAPTURE(transport, i);
      const JobFolder job;
      std::size_t before = 0;
      std::size_t after = 0;

      const auto suspend = [&](pid_t launcher) {
        await_steps(job, 3, launcher);
        std::vector<pid_t> all = descendants_of(launcher);
        all.push_back(launcher);
        for (const pid_t each : all) {
          stop_process(each);
        }
        before = steps_of(job);
        static_cast<void>(ends_within(launcher, longer_than_timeouts));
        for (const pid_t each : all) {
          kill(each, SIGCONT);
        }
        await_steps(job, before + 3, launcher);
        after = steps_of(job);
        kill(launcher, SIGINT);
      };
      const std::vector<std::string> settings = endless(transport, 3, {"job.timeout=1", "model.width=128"});
      const Ended ended =
          transport == "mpi" ? run_beside_mpirun(job, 3, settings, suspend) : run_beside(job, settings, suspend);

      INFO(ended.err);
      if (transport != "mpi") {  // mpirun has an exit code of its own
        CHECK(ended.code == 128 + SIGINT);
      }
      CHECK(after >= before + 3);
    }
  }
}

TEST_CASE("a launcher whose rank is stopped during its start still obeys signals", "[suspensions]") {
  const int signal = GENERATE(SIGINT, SIGTERM, SIGHUP);
  for (int i = 0; i < attacks(1); ++i) {
    CAPTURE(signal, i);
    const JobFolder job;
    pid_t stopped = 0;
    const Ended ended = run_beside(job, endless("shm", 2), [&](pid_t launcher) {
      for (const pid_t rank : await_children(launcher, 1)) {
        stop_process(stopped = rank);
      }
      kill(launcher, signal);
    });
    INFO(ended.out << ended.err);
    CHECK(ended.code == 128 + signal);
    CHECK_THAT(ended.err, Contains("before the first step"));
    CHECK(is_gone(stopped));
    CHECK(left_of({}).empty());
  }
}

TEST_CASE("a rank that is stopped during its start is named after the time to join", "[suspensions]") {
  const JobFolder job;
  setenv("SHARDRUN_PLUGIN_TIMEOUT", "5", 1);  // a rank has at least as long to join
  pid_t stopped = 0;
  const Ended ended = run_beside(job, endless("shm", 2, {"job.timeout=1"}), [&](pid_t launcher) {
    stopped = await_children(launcher, 1).at(0);
    stop_process(stopped);
  });
  unsetenv("SHARDRUN_PLUGIN_TIMEOUT");
  INFO(ended.err);
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("(pid " + std::to_string(stopped)) && Contains("has not "));
  CHECK(is_gone(stopped));
}

TEST_CASE("a signal stops a job while it samples, and the weights are saved", "[suspensions]") {
  const int ranks = GENERATE(1, 2);
  for (int i = 0; i < attacks(1); ++i) {
    CAPTURE(ranks, i);
    const JobFolder job;
    const Ended ended = stop_at(job,
                                {"job.ranks=" + std::to_string(ranks), strategy(ranks), "train.steps=2",
                                 "train.eval_every=0", "train.sample=1000000"},
                                "sampling token", SIGTERM);
    INFO(ended.out);
    CHECK(ended.code == 128 + SIGTERM);
    CHECK_THAT(ended.out, Contains("asked to stop by signal 15 (SIGTERM)"));
    CHECK(job.summary().at("status") == "stopped");
    CHECK(job.summary().at("steps") == 2);
    CHECK(std::filesystem::exists(job.path() / "run/weights.safetensors"));
    CHECK_FALSE(std::filesystem::exists(job.path() / "run/sample.txt"));
  }
}

TEST_CASE("a signal stops a job while it validates, and the weights are saved", "[suspensions]") {
  const int ranks = GENERATE(1, 2);
  for (int i = 0; i < attacks(1); ++i) {
    CAPTURE(ranks, i);
    const JobFolder job;
    {
      std::ofstream corpus(job.path() / "corpus.txt");
      for (int line = 0; line < 400'000; ++line) {
        corpus << "the cat sat on the mat and saw some red bird fly\n";
      }
    }
    const Ended ended =
        stop_at(job, {"job.ranks=" + std::to_string(ranks), strategy(ranks), "train.steps=1000", "train.eval_every=1"},
                "validating batch", SIGTERM);
    INFO(ended.out);
    CHECK(ended.code == 128 + SIGTERM);
    CHECK(job.summary().at("status") == "stopped");
    CHECK(job.summary().at("steps") == 1);
    CHECK(job.summary().at("val_loss").is_null());
    CHECK(std::filesystem::exists(job.path() / "run/weights.safetensors"));
  }
}

TEST_CASE("after a second signal the job says that its results were saved before", "[suspensions]") {
  const JobFolder job;
  const Ended ended =
      run_until(job, {"job.ranks=2", "job.strategy=dp", "train.steps=2", "train.sample=1000000"}, "sampling token",
                [&](pid_t launcher) {
                  for (const pid_t rank : children_of(launcher)) {
                    stop_process(rank);  // otherwise the ranks would end normally before it
                  }
                  kill(launcher, SIGTERM);
                  while (read_file(job.path() / "run/log/rank-0.log").find("asked to stop") == std::string::npos &&
                         !ends_within(launcher, 1)) {
                  }
                  kill(launcher, SIGINT);
                });
  CHECK(ended.code == 128 + SIGINT);
  CHECK_THAT(ended.out, Contains("ended at once by a second signal") && Contains("the results were saved before"));
}

TEST_CASE("a run whose output nobody reads goes on, and stops when asked to", "[suspensions]") {
  const int ranks = GENERATE(1, 2);
  const std::string closed = GENERATE("out", "err");
  for (int i = 0; i < attacks(1); ++i) {
    CAPTURE(ranks, closed, i);
    const JobFolder job;
    const std::string settings = " --set job.ranks=" + std::to_string(ranks) + " --set " + strategy(ranks) +
                                 " --set train.steps=1000000 --set train.log_every=1 --set train.eval_every=0";
    std::array<int, 2> pipe_ends = {};
    REQUIRE(pipe2(pipe_ends.data(), O_CLOEXEC) == 0);
    const shardrun::files::FileDescriptor reader(pipe_ends[0]);
    shardrun::files::FileDescriptor writer(pipe_ends[1]);
    fcntl(writer.get(), F_SETPIPE_SZ, 4096);
    const std::string path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(writer.get());
    const std::string streams = closed == "out" ? " > " + path + " 2> err" : " --json > out 2> " + path;
    const Ended ended = run_script(job.path(), "\"$0\" job.ini" + settings + streams + " & echo $!; wait $!",
                                   [&](pid_t script, std::string_view out) {
                                     if (out.find('\n') == std::string_view::npos) {
                                       return;
                                     }
                                     const pid_t launcher = std::stoi(std::string(out));
                                     await_steps(job, 300, script);
                                     kill(launcher, SIGTERM);
                                   });
    CHECK(ended.code == 128 + SIGTERM);
    CHECK(job.summary().at("status") == "stopped");
    CHECK(job.summary().at("steps").to_number<int>() >= 300);
    CHECK(std::filesystem::exists(job.path() / "run/weights.safetensors"));
  }
}
