#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <future>
#include <map>

#include "core/checkpoint/safetensors.h"
#include "core/files/descriptor.h"
#include "core/launch/process.h"
#include "tests/integration/processes.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"
#include "tests/support/text_job.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
namespace json = boost::json;

namespace {

std::vector<std::string> settings(const std::string& strategy, const std::string& transport, int ranks,
                                  std::vector<std::string> more = {}) {
  more.insert(more.end(), {"job.strategy=" + strategy, "job.transport=" + transport,
                           "job.ranks=" + std::to_string(ranks), "job.threads=1"});
  return more;
}

double worst_relative(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::abs(found[i] / expected[i] - 1));
  }
  return worst;
}

/// Runs a job of many steps, and acts on its ranks once, when some steps are done. However the run ends, its ranks must
/// be gone soon, and must leave nothing behind.
class Interference {
 public:
  explicit Interference(std::function<void(pid_t launcher, const std::vector<pid_t>& ranks)> act)
      : act_(std::move(act)) {}

  Ended run(const JobFolder& job, const std::vector<std::string>& overrides) {
    std::set<std::string> shared_memory;
    const Ended ended =
        run_program(job.path(), with_settings({"job.ini"}, overrides), [&](pid_t launcher, std::string_view out) {
          if (ranks_.empty() && out.find("step 1/") != std::string_view::npos) {
            ranks_ = children_of(launcher);
            shared_memory = shared_memory_of(ranks_);
            act_(launcher, ranks_);
          }
        });
    CHECK_FALSE(ranks_.empty());
    for (const pid_t rank : ranks_) {
      CHECK(ends_soon(rank));
    }
    CHECK(left_of(shared_memory).empty());
    return ended;
  }

  [[nodiscard]] const std::vector<pid_t>& ranks() const { return ranks_; }

 private:
  std::function<void(pid_t, const std::vector<pid_t>&)> act_;
  std::vector<pid_t> ranks_;
};

/// Sends SIGINT, and SIGTERM once SIGINT has been seen. Two pending signals may come in either order.
void ask_twice(pid_t launcher, const JobFolder& job) {
  kill(launcher, SIGINT);
  const auto is_heard = [&] {
    return read_file(job.path() / "run/log/rank-0.log").find("stopping after this step") != std::string::npos;
  };
  while (!is_heard() && !ends_within(launcher, 1)) {
  }
  kill(launcher, SIGTERM);
}

/// Longer than every deadline of a job with [job] timeout = 2.
constexpr int past_every_deadline_ms = 5000;

const std::vector<std::string> endless = {"train.steps=1000000", "train.log_every=1"};

std::vector<std::string> with(std::vector<std::string> settings, const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

}  // namespace

TEST_CASE("a job split over ranks has the losses of one rank, and the planned memory and traffic", "[ranks]") {
  const JobFolder single;
  REQUIRE(single.run().code == 0);
  const std::vector<double> expected = single.losses();
  for (const std::string& transport : installed("transport")) {
    for (const auto& [strategy, ranks] : {std::pair{"dp", 2}, {"dp", 3}, {"tp", 2}, {"zero3", 3}, {"pp", 2}}) {
      DYNAMIC_SECTION(strategy << " of " << ranks << " over " << transport) {
        const JobFolder job;
        const std::vector<std::string> how = settings(strategy, transport, ranks);

        const Ended ended = job.run(how);

        INFO(ended.err);
        REQUIRE(ended.code == 0);
        CHECK(ended.err.empty());
        CHECK(left_of({}).empty());
        CHECK(worst_relative(job.losses(), expected) < 1e-3);
        const json::object summary = job.summary();
        CHECK(std::abs(summary.at("val_loss").to_number<double>() -
                       single.summary().at("val_loss").to_number<double>()) < 0.02);
        const Ended planned = run_program(job.path(), with_settings({"plan", "job.ini", "--json"}, how));
        const json::object plan = json::parse(planned.out).as_object();
        REQUIRE(summary.at("ranks").as_array().size() == static_cast<std::size_t>(ranks));
        for (const json::value& alike : plan.at("ranks").as_array()) {
          for (const json::value& member : alike.at("members").as_array()) {
            const json::object& rank = summary.at("ranks").as_array().at(member.to_number<std::size_t>()).as_object();
            CHECK(rank.at("peak_bytes") == alike.at("bytes").at("peak"));
            CHECK(rank.at("planned_bytes") == alike.at("bytes").at("peak"));
            CHECK(rank.at("sent_bytes") == alike.at("sent_bytes"));
            CHECK_FALSE(rank.at("sent_bytes").as_object().empty());
            CHECK(rank.at("wire_bytes").to_number<std::uint64_t>() > 0);
            CHECK((sanitized || rank.at("private_bytes").to_number<std::uint64_t>() < 100'000'000));
          }
        }
        const shardrun::checkpoint::SafetensorsFile whole(single.path() / "run/weights.safetensors");
        const shardrun::checkpoint::SafetensorsFile joined(job.path() / "run/weights.safetensors");
        REQUIRE(joined.tensors().size() == whole.tensors().size());
        for (const shardrun::checkpoint::Tensor& tensor : whole.tensors()) {
          CHECK(joined.at(tensor.info.name).info == tensor.info);
        }
        CHECK(run_program(job.path(), {"generate", "run", "--tokens", "5"}).code == 0);
      }
    }
  }
}

TEST_CASE("a killed rank ends the job and is named, and no process is left", "[ranks]") {
  for (const std::string& transport : installed("transport")) {
    for (const std::size_t victim : {0U, 1U}) {
      DYNAMIC_SECTION("rank " << victim << " over " << transport) {
        const JobFolder job;
        Interference kill_one([&](pid_t, const std::vector<pid_t>& ranks) { kill(ranks.at(victim), SIGKILL); });

        const Ended ended = kill_one.run(job, with(settings("dp", transport, 2), endless));

        CHECK(ended.code != 0);
        CHECK_THAT(ended.err, Contains("rank " + std::to_string(victim)));
        CHECK_THAT(ended.err, Contains(std::to_string(kill_one.ranks().at(victim))));
        CHECK_THAT(ended.err, Contains("SIGKILL"));
        for (const pid_t rank : kill_one.ranks()) {
          CHECK(is_gone(rank));
        }
        CHECK(job.summary().at("status") == "failed");
        const json::object summary = job.summary();
        CHECK_THAT(std::string(summary.at("error").as_string()), Contains("SIGKILL"));
        CHECK(summary.at("steps").to_number<std::size_t>() >= 1);
        CHECK(summary.at("steps").to_number<std::size_t>() <= job.metrics().size());
        CHECK(summary.at("loss").is_double());
        CHECK(summary.at("parameters").to_number<int>() > 0);
        for (const json::value& rank : summary.at("ranks").as_array()) {
          CHECK(rank.at("planned_bytes").to_number<int>() > 0);
        }
      }
    }
  }
}

TEST_CASE("a rank killed while weights are written leaves no half-written file", "[ranks]") {
  // Opening a pipe for writing blocks until it is opened for reading. So the first rank blocks when it begins the file,
  // and the other one waits for the first.
  const int victim = GENERATE(1, 0);
  const JobFolder job;
  const std::filesystem::path run = job.path() / "run";
  std::future<void> killing;
  Interference kill_one([&, victim = static_cast<std::size_t>(victim), held = run / ".weights.safetensors.tmp"](
                            pid_t launcher, const std::vector<pid_t>& ranks) {
    REQUIRE(mkfifo(held.c_str(), 0600) == 0);  // opening it for writing blocks
    killing = std::async(std::launch::async, [&run, rank = ranks.at(victim), launcher] {
      const auto is_writing = [&] {
        return read_file(run / "flight/rank-0.record").find("writing what the ranks hold") != std::string::npos;
      };
      while (!is_writing() && !ends_within(launcher, 1)) {
      }
      kill(rank, SIGKILL);
    });
    kill(launcher, SIGINT);
  });

  const Ended ended = kill_one.run(job, with(settings("dp", installed("transport").front(), 2), endless));

  killing.get();
  INFO(ended.err);
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("SIGKILL"));
  for (const auto& entry : std::filesystem::directory_iterator(run)) {
    const std::string name = entry.path().filename().string();
    CHECK_THAT(name, !Contains("rank-") && !Contains("tmp"));
  }
}

TEST_CASE("a stopped rank is noticed when its answer is overdue", "[ranks]") {
  for (const std::string& transport : installed("transport")) {
    DYNAMIC_SECTION(transport) {
      const JobFolder job;
      Interference stop_one([&](pid_t, const std::vector<pid_t>& ranks) { kill(ranks.at(1), SIGSTOP); });

      const Ended ended = stop_one.run(job, with(settings("dp", transport, 2, {"job.timeout=2"}), endless));

      CHECK(ended.code == 1);
      CHECK_THAT(ended.err, StartsWith("shardrun: rank 1 (pid " + std::to_string(stop_one.ranks().at(1))) &&
                                Contains("has not answered for ") &&
                                Contains(" s: its process is stopped (SIGSTOP, or by a terminal)"));
      for (const pid_t rank : stop_one.ranks()) {
        CHECK(is_gone(rank));
      }
    }
  }
}

namespace {

/// Waits until a process that writes to a pipe all the time can write no more. How full the pipe is then depends on the
/// size of the next write.
void await_full(int pipe, pid_t writer) {
  int before = 0;
  int still = 0;
  for (int bytes = 0; still < 50 && !ends_within(writer, 10); before = bytes) {
    ioctl(pipe, FIONREAD, &bytes);
    still = bytes > 0 && bytes == before ? still + 1 : 0;
  }
}

}  // namespace

TEST_CASE("a full screen that nobody reads delays neither the end of a failed job nor a second signal", "[ranks]") {
  const bool by_signals = GENERATE(false, true);
  const JobFolder job;
  const std::filesystem::path screen = job.path() / "screen";
  REQUIRE(mkfifo(screen.c_str(), 0600) == 0);
  const shardrun::files::FileDescriptor unread(open(screen.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(fcntl(unread.get(), F_SETPIPE_SZ, 4096) > 0);
  std::vector<pid_t> ranks;
  std::future<bool> ends;

  const Ended ended =
      run_script(job.path(),
                 "exec \"$0\" job.ini --set job.strategy=dp --set job.ranks=2 --set train.steps=1000000 "
                 "--set train.log_every=1 > screen",
                 [&](pid_t launcher, std::string_view) {
                   ends = beside(launcher, [&, launcher] {
                     ranks = await_children(launcher, 2);
                     await_full(unread.get(), launcher);
                     if (by_signals) {
                       for (const pid_t rank : ranks) {
                         kill(rank, SIGSTOP);  // otherwise the ranks would stop normally before the second signal
                       }
                       ask_twice(launcher, job);
                     } else {
                       kill(ranks.at(1), SIGKILL);
                     }
                     const bool in_time = ends_within(launcher, 60000);
                     if (!in_time) {
                       kill(launcher, SIGKILL);
                     }
                     return in_time;
                   });
                 });

  CHECK(ends.get());
  CHECK(ended.code == (by_signals ? 128 + SIGTERM : 1));
  if (!by_signals) {
    CHECK_THAT(ended.err, Contains("rank 1 (pid " + std::to_string(ranks.at(1))) && Contains("SIGKILL"));
  }
}

TEST_CASE("a rank that hangs but sends heartbeats is named before the ranks that wait for it", "[ranks]") {
  for (const std::string& transport : installed("transport")) {
    INFO(transport);
    const JobFolder job;
    std::future<bool> holding;
    // Stops only the rank's main thread, for as long as the thread that stops it lives.
    Interference hold_one([&](pid_t, const std::vector<pid_t>& ranks) {
      std::promise<void> held;
      std::future<void> is_held = held.get_future();
      holding = std::async(std::launch::async, [held = std::move(held), rank = ranks.at(2)]() mutable {
        const bool may =
            ptrace(PTRACE_SEIZE, rank, nullptr, nullptr) == 0 && ptrace(PTRACE_INTERRUPT, rank, nullptr, nullptr) == 0;
        held.set_value();
        for (int status = 0; may && waitpid(rank, &status, __WALL) == rank && WIFSTOPPED(status);) {
        }
        if (!may) {
          kill(rank, SIGKILL);
        }
        return may;
      });
      is_held.wait();
    });

    const Ended ended = hold_one.run(job, with(settings("dp", transport, 3, {"job.timeout=2"}), endless));

    if (!holding.get()) {
      WARN("no process may be traced here");
      return;
    }
    INFO(ended.err);
    CHECK(ended.code == 1);
    CHECK_THAT(ended.err,
               StartsWith("shardrun: rank 2 (pid " + std::to_string(hold_one.ranks().at(2))) &&
                   Contains("does not answer other ranks") &&
                   (Contains("waiting for member") || Contains("receiving from member") || Contains("is lost")));
  }
}

TEST_CASE("ranks end with their launcher", "[ranks]") {
  for (const std::string& transport : installed("transport")) {
    DYNAMIC_SECTION(transport) {
      const JobFolder job;
      Interference kill_launcher([](pid_t launcher, const std::vector<pid_t>&) { kill(launcher, SIGKILL); });

      const Ended ended = kill_launcher.run(job, with(settings("dp", transport, 2), endless));

      CHECK(ended.code == -SIGKILL);  // run() has checked that the ranks end
    }
  }
}

TEST_CASE("a signal stops all ranks at the same step, and their results are saved", "[ranks]") {
  for (const std::string& transport : installed("transport")) {
    DYNAMIC_SECTION(transport) {
      const JobFolder job;
      Interference interrupt([](pid_t launcher, const std::vector<pid_t>&) { kill(launcher, SIGINT); });

      const Ended ended = interrupt.run(job, with(settings("tp", transport, 2), endless));

      INFO(ended.err);
      CHECK(ended.code == 128 + SIGINT);
      CHECK(job.summary().at("status") == "stopped");
      CHECK(job.summary().at("steps").to_number<std::size_t>() == job.metrics().size());
      CHECK(std::filesystem::exists(job.path() / "run/weights.safetensors"));
    }
  }
}

TEST_CASE("after Ctrl-Z ranks may pause between two steps for longer than the timeout of operations", "[ranks]") {
  for (const std::string& transport : installed("transport")) {
    INFO(transport);
    const JobFolder job;
    const std::string program = run_script(job.path(), "printf %s \"$0\"").out;
    // start_process() makes its child ignore SIGINT, as a rank does.
    std::vector<std::string> words =
        with_settings({"env", "--default-signal=INT", program, (job.path() / "job.ini").string()},
                      with(settings("dp", transport, 2, {"job.timeout=2"}), endless));
    words.insert(words.end(), {"--set", "job.output=" + (job.path() / "run").string()});
    const auto steps = [&job] {
      const std::string lines = read_file(job.path() / "run/metrics.jsonl");
      return std::count(lines.begin(), lines.end(), '\n');
    };
    // The launcher has a process group that could be continued. It would not stop in an orphaned one.
    const shardrun::launch::StartedProcess launcher =
        shardrun::launch::start_process({.program = "/usr/bin/env", .arguments = words, .environment = {}});
    const auto await_steps = [&](std::ptrdiff_t count) {
      while (steps() < count && !ends_within(launcher.pid, 1)) {
      }
    };

    await_steps(2);
    kill(launcher.pid, SIGTSTP);
    siginfo_t stopped = {};
    REQUIRE(waitid(P_PID, static_cast<id_t>(launcher.pid), &stopped, WSTOPPED | WEXITED | WNOWAIT) == 0);
    CHECK(stopped.si_code == CLD_STOPPED);
    const std::ptrdiff_t before = steps();
    CHECK_FALSE(ends_within(launcher.pid, past_every_deadline_ms));
    CHECK(steps() == before);
    kill(launcher.pid, SIGCONT);
    await_steps(before + 2);
    kill(launcher.pid, SIGINT);

    int status = 0;
    REQUIRE(waitpid(launcher.pid, &status, 0) == launcher.pid);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 128 + SIGINT);
  }
}

TEST_CASE("a second signal ends the ranks at once, and the summary counts their steps", "[ranks]") {
  const JobFolder job;
  Interference insist([&job](pid_t launcher, const std::vector<pid_t>& ranks) {
    for (const pid_t rank : ranks) {
      kill(rank, SIGSTOP);  // otherwise the ranks would stop normally before the second signal
    }
    ask_twice(launcher, job);
  });

  const Ended ended = insist.run(job, with(settings("dp", installed("transport").front(), 2), endless));

  CHECK(ended.code == 128 + SIGTERM);
  CHECK_THAT(ended.err, Contains("shardrun: ended at once by a second signal (SIGTERM) after "));
  const json::object summary = job.summary();
  CHECK(summary.at("status") == "stopped");
  CHECK(summary.at("exit_code") == 128 + SIGTERM);
  CHECK(summary.at("steps").to_number<std::size_t>() >= 1);
  CHECK(summary.at("loss").is_double());
  CHECK_FALSE(std::filesystem::exists(job.path() / "run/weights.safetensors"));
}

TEST_CASE("ranks wait for a rank that is slow to start, without a deadline", "[ranks]") {
  const JobFolder job;
  const std::filesystem::path held = job.path() / "held";
  REQUIRE(mkfifo(held.c_str(), 0600) == 0);
  std::future<bool> early;

  const Ended ended =
      run_program(job.path(),
                  with_settings({"job.ini"}, settings("held", installed("transport").front(), 2,
                                                      {"job.timeout=2", "plugins.path=" SHARDRUN_OUTSIDE_STRATEGIES})),
                  [&](pid_t launcher, std::string_view out) {
                    if (out.empty()) {
                      early = beside(launcher, [&held, launcher] {
                        const std::vector<pid_t> ranks = await_children(launcher, 2);
                        const bool ended_early = ranks.empty() || ends_within(ranks.at(0), past_every_deadline_ms);
                        const shardrun::files::FileDescriptor let_go(open(held.c_str(), O_RDWR | O_CLOEXEC));
                        (void)ends_within(launcher, 60000);
                        return ended_early;
                      });
                    }
                  });

  INFO(ended.err);
  CHECK_FALSE(early.get());
  CHECK(ended.code == 0);
}

TEST_CASE("ranks wait without a deadline for the rank that writes the joined weights", "[ranks]") {
  const JobFolder job;
  const std::filesystem::path held = job.path() / "run/.weights.safetensors.tmp";
  std::future<bool> early;
  Interference hold([&](pid_t launcher, const std::vector<pid_t>& ranks) {
    // Opening the pipe for writing blocks until it is opened for reading.
    CHECK(mkfifo(held.c_str(), 0600) == 0);
    early = std::async(std::launch::async, [&held, other = ranks.at(1)] {
      const bool ended_early = ends_within(other, past_every_deadline_ms);
      const std::filesystem::path moved = held.string() + ".moved";
      std::filesystem::rename(held, moved);
      const shardrun::files::FileDescriptor let_go(open(moved.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
      return ended_early;
    });
    kill(launcher, SIGINT);
  });

  const Ended ended =
      hold.run(job, with(settings("dp", installed("transport").front(), 2, {"job.timeout=2"}), endless));

  INFO(ended.err);
  CHECK_FALSE(early.get());
  CHECK(ended.code == 128 + SIGINT);
  CHECK(std::filesystem::exists(job.path() / "run/weights.safetensors"));
}

TEST_CASE("a loss that is not finite stops all ranks and names the step and the first bad tensor", "[ranks]") {
  for (const std::string& transport : installed("transport")) {
    for (const char* strategy : {"dp", "pp"}) {
      DYNAMIC_SECTION(strategy << " over " << transport) {
        const JobFolder job;

        const Ended ended =
            job.run(settings(strategy, transport, 2, {"train.learning_rate=1e30", "data.microbatches=3"}));

        CHECK(ended.code == 1);
        CHECK_THAT(std::string(job.summary().at("error").as_string()),
                   Contains("step 2: the loss is NaN; the first tensor that is not finite: layer.0/") &&
                       Contains(" of rank 0, microbatch 0. "));
        CHECK(job.summary().at("steps") == 1);
      }
    }
  }
}

TEST_CASE("a job that cannot be split is refused before anything starts", "[ranks]") {
  const JobFolder job;
  const auto refused = [&](const std::vector<std::string>& overrides) {
    const Ended ended = job.run(overrides);
    CHECK(ended.code == 2);
    CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
    return ended.err;
  };
  const std::string transport = installed("transport").front();
  CHECK_THAT(refused(settings("dp", "carrier_pigeon", 2)), Contains("carrier_pigeon") && Contains(transport));
  CHECK_THAT(refused(settings("dp", transport, 2, {"transport.model=" + transport})),
             Contains("the mesh has no axis 'model'") && Contains("data"));
  CHECK_THAT(refused(settings("dp", transport, 4, {"mesh.a=2", "mesh.b=2"})), Contains("one mesh axis"));
  CHECK_THAT(refused({"job.ranks=2"}), Contains("single"));
}

TEST_CASE("a job with more ranks than its limit of open files allows is refused before anything is written",
          "[ranks]") {
  const JobFolder job;
  const std::string run = "\"$0\" job.ini --set job.strategy=dp --set job.ranks=2 --set job.threads=1";

  const Ended refused = run_script(job.path(), "ulimit -n 100; " + run);

  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("[job] ranks = 2 needs 136 open files") && Contains("it may have 100"));
  CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
  const Ended raised = run_script(job.path(), "ulimit -Sn 24; " + run);
  INFO(raised.err);
  CHECK(raised.code == 0);
}
