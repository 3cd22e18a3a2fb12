// Faults of a real job's processes at every stage, and connections from strangers: how the job ends, what it says, and
// what it leaves behind.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <future>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/files/descriptor.h"
#include "core/runtime/flight_record.h"
#include "tests/integration/processes.h"
#include "tests/integration/program.h"
#include "tests/support/attacks.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

constexpr int ranks = 3;

std::vector<std::string> settings(const std::string& transport, std::vector<std::string> more) {
  more.insert(more.end(), {"job.strategy=zero3", "job.transport=" + transport, "job.ranks=" + std::to_string(ranks),
                           "job.threads=1", "train.steps=1000000"});
  return more;
}

/// The phase that a rank reports; "" before its first report. It is not "training" before the first operation.
std::string phase_of(const JobFolder& job, std::size_t rank) {
  try {
    const shardrun::runtime::FlightRecord record =
        shardrun::runtime::read_flight_record(job.path() / "run/flight" / ("rank-" + std::to_string(rank) + ".record"));
    return record.phase == "training" && record.entries.empty() ? "connecting" : record.phase;
  } catch (const shardrun::Error&) {
    return {};
  }
}

/// Whether a rank is in a phase, or already in a later one: some are too short to be seen.
bool has_come_to(const JobFolder& job, std::size_t rank, const std::string& phase) {
  const std::vector<std::string> in_order = {"",
                                             "comparing plans",
                                             "comparing data",
                                             "waiting for ranks that load their data",
                                             "connecting",
                                             "training",
                                             "comparing replicas",
                                             "validating",
                                             "writing what the ranks hold",
                                             "sampling"};
  const auto place = [&](const std::string& of) {
    const auto found = std::find(in_order.begin(), in_order.end(), of);
    if (found == in_order.end()) {
      throw std::logic_error("these tests do not know the phase '" + of + "'");
    }
    return found;
  };
  return place(phase_of(job, rank)) >= place(phase);
}

/// Runs a job, and acts on its ranks once one of them has reached a phase ("": before any). Whatever the act, the job
/// must end soon (by its own report within a second), with no process alive and no file left behind.
class Strike {
 public:
  using Act = std::function<void(pid_t launcher, const std::vector<pid_t>& ranks)>;

  Strike(std::string phase, std::size_t rank, Act act) : phase_(std::move(phase)), rank_(rank), act_(std::move(act)) {}

  Ended run(const std::vector<std::string>& overrides) {
    const Ended ended =
        run_program(job_.path(), with_settings({"job.ini"}, overrides), [&](pid_t launcher, std::string_view) {
          if (!striking_.valid()) {
            striking_ = beside(launcher, [this, launcher] { strike(launcher); });
          }
        });
    striking_.get();
    REQUIRE(ranks_.size() == ranks);
    for (const pid_t rank : ranks_) {
      CHECK(is_gone(rank));
    }
    CHECK((phase_.empty() || std::is_permutation(below_.begin(), below_.end(), ranks_.begin(), ranks_.end())));
    CHECK(ranks_below(job_.path()).empty());
    CHECK(left_of({}).empty());
    for (const auto& entry : std::filesystem::recursive_directory_iterator(job_.path() / "run")) {
      const std::string name = entry.path().filename().string();
      CHECK_THAT(name, !Contains(".tmp") && !Contains(".record"));
    }
    return ended;
  }

  /// Checks what the program says about a failure.
  void check_blamed(const Ended& ended, std::size_t rank, const std::string& how) {
    INFO(ended.err);
    CHECK(ended.code == 1);
    CHECK_THAT(ended.err, StartsWith("shardrun: rank " + std::to_string(rank) + " (pid " +
                                     std::to_string(ranks_.at(rank)) + " on ") &&
                              Contains(how));
    const boost::json::object summary = job_.summary();
    CHECK(summary.at("status") == "failed");
    CHECK(summary.at("ending_s").to_number<double>() <= 1);
  }

  [[nodiscard]] const JobFolder& job() const { return job_; }
  [[nodiscard]] const std::vector<pid_t>& pids() const { return ranks_; }

 private:
  void strike(pid_t launcher) {
    ranks_ = await_children(launcher, ranks);
    while (!ranks_.empty() && !has_come_to(job_, rank_, phase_) && !ends_within(launcher, 1)) {
    }
    if (!ranks_.empty()) {
      below_ = ranks_below(job_.path());
      act_(launcher, ranks_);
    }
  }

  JobFolder job_;
  std::string phase_;
  std::size_t rank_;
  Act act_;
  std::vector<pid_t> ranks_;
  std::vector<pid_t> below_;
  std::future<void> striking_;
};

Strike::Act send(std::size_t rank, int signal) {
  return [=](pid_t, const std::vector<pid_t>& all) { kill(all.at(rank), signal); };
}

std::string where_ranks_meet(pid_t rank) {
  std::ifstream environment("/proc/" + std::to_string(rank) + "/environ");
  for (std::string entry; std::getline(environment, entry, '\0');) {
    if (entry.starts_with("MASTER_PORT=")) {
      return entry.substr(entry.find('=') + 1);
    }
  }
  return {};
}

/// Connects to a port of this machine and sends bytes. Returns the open connection.
shardrun::files::FileDescriptor say(const std::string& port, const std::string& bytes) {
  shardrun::files::FileDescriptor made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(port)));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(made.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && !bytes.empty()) {
    static_cast<void>(::send(made.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  return made;
}

const std::vector<std::string> transports = {"shm", "tcp"};

}  // namespace

TEST_CASE("a rank killed before it has joined is the root cause", "[faults]") {
  for (const std::string& transport : transports) {
    for (const std::size_t victim : {0U, 2U}) {
      DYNAMIC_SECTION("rank " << victim << " over " << transport) {
        Strike strike("", victim, send(victim, SIGKILL));
        strike.check_blamed(strike.run(settings(transport, {})), victim, "was killed by signal 9 (SIGKILL)");
      }
    }
  }
}

TEST_CASE("a rank killed at any stage of a job is the root cause, with its last operation", "[faults]") {
  for (const std::string& transport : transports) {
    for (const std::string phase : {"comparing plans", "connecting", "training", "validating"}) {
      for (const std::size_t victim : {0U, 1U}) {
        DYNAMIC_SECTION("rank " << victim << ' ' << phase << " over " << transport) {
          Strike strike(phase, victim, send(victim, SIGKILL));

          const Ended ended = strike.run(settings(transport, {"train.eval_every=1"}));

          strike.check_blamed(ended, victim, "was killed by signal 9 (SIGKILL)");
          CHECK_THAT(ended.err, Contains("\n  rank " + std::to_string(victim) + " was at: ") &&
                                    Contains("the last operations of every rank: "));
          CHECK(std::filesystem::exists(strike.job().path() / "run/flight" /
                                        ("rank-" + std::to_string(victim) + ".jsonl")));
        }
      }
    }
  }
}

TEST_CASE("the root cause is reported with the ranks that wait, and the operations they wait in", "[faults]") {
  for (const std::string& transport : transports) {
    DYNAMIC_SECTION(transport) {
      Strike strike("training", 1, [](pid_t, const std::vector<pid_t>& all) {
        // While this rank is stopped, the others begin to wait for it. Then it dies.
        kill(all.at(1), SIGSTOP);
        kill(all.at(1), SIGKILL);
      });

      const Ended ended = strike.run(settings(transport, {}));

      strike.check_blamed(ended, 1, "SIGKILL");
      CHECK_THAT(ended.err, Contains("\n  rank 1 was at: step ") && Contains("(training), "));
      CHECK_THAT(ended.err, Contains(" over data)"));
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<boost::json::object> lines =
            read_json_lines(strike.job().path() / "run/flight" / ("rank-" + std::to_string(rank) + ".jsonl"));
        REQUIRE(lines.size() > 1);
        CHECK(lines.size() <= 1001);
        CHECK(lines.front().at("rank").to_number<int>() == rank);
        CHECK(lines.front().at("pid").to_number<pid_t>() == strike.pids().at(static_cast<std::size_t>(rank)));
        CHECK(lines.back().at("number_in_group").to_number<int>() >= 1);
      }
    }
  }
}

TEST_CASE("a rank that ends by a signal is reported with the signal", "[faults]") {
  for (const std::string& transport : transports) {
    for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGUSR2}) {
      const std::string name = std::string("SIG") + sigabbrev_np(signal);
      DYNAMIC_SECTION(name << " over " << transport) {
        Strike strike("training", 2, send(2, signal));
        const Ended ended = strike.run(settings(transport, {}));
        if (sanitized && signal != SIGUSR2) {
          CHECK(ended.code == 1);  // the sanitizer takes the signal and ends the process in its own way
        } else {
          strike.check_blamed(ended, 2, "(" + name + ")");
        }
      }
    }
  }
}

TEST_CASE("signals that a batch system sends to all processes are handled by the launcher alone", "[faults]") {
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) {
    DYNAMIC_SECTION("SIG" << sigabbrev_np(signal)) {
      Strike strike("training", 1, [&](pid_t launcher, const std::vector<pid_t>& all) {
        // The launcher learns from the first rank that the first step has begun, and this rank may be ahead of it.
        const std::filesystem::path metrics = strike.job().path() / "run/metrics.jsonl";
        while ((!std::filesystem::exists(metrics) || std::filesystem::file_size(metrics) == 0) &&
               !ends_within(launcher, 1)) {
        }
        for (const pid_t rank : all) {
          kill(rank, signal);
        }
        kill(launcher, signal);
      });

      const Ended ended = strike.run(settings("shm", {}));

      INFO(ended.err);
      CHECK(ended.code == 128 + signal);
      CHECK(strike.job().summary().at("status") == "stopped");
      CHECK(strike.job().summary().at("steps").to_number<std::size_t>() == strike.job().metrics().size());
      CHECK(std::filesystem::exists(strike.job().path() / "run/weights.safetensors"));
    }
    DYNAMIC_SECTION("SIG" << sigabbrev_np(signal) << " with checkpoints") {
      Strike strike("training", 1, [&](pid_t launcher, const std::vector<pid_t>& all) {
        for (const pid_t rank : all) {
          kill(rank, signal);
        }
        kill(launcher, signal);
      });

      const Ended ended = strike.run(settings("shm", {"checkpoint.every=1000000"}));

      INFO(ended.err);
      CHECK(ended.code == 75);
      const boost::json::object summary = strike.job().summary();
      const boost::json::object& saved = summary.at("checkpoints").as_object();
      // On a busy machine the signal may come before the first step: then there is nothing to save.
      CHECK((saved.contains("last_step") ? saved.at("last_step") : boost::json::value(0)) == summary.at("steps"));
    }
  }
}

TEST_CASE("if all ranks are killed together, one of them is the root cause", "[faults]") {
  for (const std::string& transport : transports) {
    DYNAMIC_SECTION(transport) {
      Strike strike("training", 0, [](pid_t, const std::vector<pid_t>& all) {
        for (const pid_t rank : all) {
          kill(rank, SIGKILL);
        }
      });

      const Ended ended = strike.run(settings(transport, {}));

      CHECK(ended.code == 1);
      CHECK_THAT(ended.err, StartsWith("shardrun: rank ") && Contains("SIGKILL"));
      CHECK(strike.job().summary().at("ending_s").to_number<double>() <= 1);
    }
  }
}

TEST_CASE("a rank that stands still for less than the timeout only delays the job", "[faults]") {
  for (const std::string& transport : transports) {
    DYNAMIC_SECTION(transport) {
      Strike strike("training", 1, [&](pid_t launcher, const std::vector<pid_t>& all) {
        kill(all.at(1), SIGSTOP);
        kill(all.at(1), SIGCONT);
        kill(launcher, SIGINT);
      });

      const Ended ended = strike.run(settings(transport, {}));

      INFO(ended.err);
      CHECK(ended.code == 128 + SIGINT);
      CHECK(strike.job().summary().at("status") == "stopped");
    }
  }
}

TEST_CASE("the death of the launcher ends the ranks at every stage", "[faults]") {
  for (const std::string phase : {"", "connecting", "training"}) {
    DYNAMIC_SECTION("while " << (phase.empty() ? "starting" : phase)) {
      const JobFolder job;
      std::vector<pid_t> started;
      std::future<void> killing;
      const Ended ended = run_program(job.path(), with_settings({"job.ini"}, settings("shm", {})),
                                      [&](pid_t launcher, std::string_view) {
                                        if (killing.valid()) {
                                          return;
                                        }
                                        killing = beside(launcher, [&, launcher] {
                                          started = await_children(launcher, ranks);
                                          while (!has_come_to(job, 0, phase) && !ends_within(launcher, 1)) {
                                          }
                                          kill(launcher, SIGKILL);
                                        });
                                      });
      killing.get();
      CHECK(ended.code == -SIGKILL);
      for (const pid_t rank : started) {
        CHECK(ends_soon(rank));
      }
      CHECK(left_of({}).empty());
    }
  }
}

TEST_CASE("strangers at the launcher's port do not disturb the job", "[faults]") {
  const int rounds = attacks(20);
  std::vector<shardrun::files::FileDescriptor> held;
  Strike strike("training", 0, [&](pid_t launcher, const std::vector<pid_t>& all) {
    const std::string port = where_ranks_meet(all.at(0));
    const std::string frame_of_ff(64, '\xff');
    for (int i = 0; i < rounds; ++i) {
      static_cast<void>(say(port, ""));                         // a port scan
      static_cast<void>(say(port, "GET / HTTP/1.0\r\n\r\n"));   // another protocol
      static_cast<void>(say(port, frame_of_ff));                // a length beyond all limits
      held.push_back(say(port, ""));                            // a stranger that says nothing
      held.push_back(say(port, std::string("\x40\0\0\0", 4)));  // one that says it slowly
      const std::string greeting = std::string("\x26\0\0\0\3\x0b", 6) + "shrd" + std::string(32, '\0');
      held.push_back(say(port, greeting));  // one that has no token
    }
    kill(launcher, SIGINT);
  });

  const Ended ended = strike.run(settings("tcp", {}));

  INFO(ended.err);
  CHECK(ended.code == 128 + SIGINT);
  CHECK(strike.job().summary().at("steps").to_number<int>() >= 1);
  CHECK(strike.job().summary().at("strangers").to_number<int>() == 6 * rounds);
  CHECK_THAT(read_file(strike.job().path() / "run/log/rank-0.log"),
             Contains(std::to_string(6 * rounds) + " connections came from strangers, and were dropped"));
}

TEST_CASE("jobs beside each other on one machine do not meet", "[faults]") {
  for (const std::string& transport : transports) {
    DYNAMIC_SECTION(transport) {
      const JobFolder one;
      const JobFolder two;
      const std::vector<std::string> how = {"job.strategy=dp", "job.ranks=2", "job.transport=" + transport};
      std::future<Ended> other = std::async(std::launch::async, [&] { return two.run(how); });
      const Ended here = one.run(how);
      const Ended there = other.get();
      INFO(here.err << there.err);
      CHECK(here.code == 0);
      CHECK(there.code == 0);
      CHECK(one.losses() == two.losses());
    }
  }
}
