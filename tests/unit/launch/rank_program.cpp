// A rank for tests: `test_launch_rank WHAT [argument…]`. See `modes` below.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/launch/launch.h"
#include "core/launch/rank.h"
#include "core/launch/signals.h"
#include "tests/unit/launch/attacks.h"

namespace {

using shardrun::Error;
using shardrun::launch::FailureKind;
using shardrun::launch::Rank;
using shardrun::launch::RankContext;
using Arguments = std::vector<std::string>;

Rank::Deadline soon() { return Rank::Clock::now() + std::chrono::seconds(60); }

void say(const std::string& line) {
  const std::string whole = line + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, whole.data(), whole.size());
}

std::string key_of(int rank) { return fmt::format("address/{}", rank); }

/// Every rank gives its own key a value, and reads the keys of all ranks.
int exchange(Rank& rank, const Arguments&) {
  rank.set(key_of(rank.rank()), fmt::format("value of {}", rank.rank()));
  for (int other = 0; other < rank.world_size(); ++other) {
    rank.message("read", rank.get(key_of(other), soon()));
  }
  rank.goodbye(soon());
  return 0;
}

/// Waits for something that never comes, until the job is aborted.
int wait(Rank& rank, const Arguments&) {
  say("ready");
  (void)rank.get("never", soon());
  return 1;
}

/// `code CODE RANK`: when all ranks have joined, this rank exits with this code, without a goodbye. The others wait.
int code(Rank& rank, const Arguments& arguments) {
  rank.set(key_of(rank.rank()), "");
  for (int other = 0; other < rank.world_size(); ++other) {
    (void)rank.get(key_of(other), soon());
  }
  if (rank.rank() == std::stoi(arguments.at(1))) {
    std::fputs("something happened\nthe last words", stderr);
    std::fflush(stderr);
    ::_exit(std::stoi(arguments.at(0)));
  }
  return wait(rank, arguments);
}

/// `goodbye CODE`: says goodbye and exits with this code.
int goodbye(Rank& rank, const Arguments& arguments) {
  rank.goodbye(soon());
  return std::stoi(arguments.at(0));
}

/// Says goodbye and does not end.
int linger(Rank& rank, const Arguments&) {
  rank.goodbye(soon());
  say("lingering");
  for (;;) {
    ::pause();
  }
}

/// `fail RANK`: this rank fails by itself. The others report what they notice of it.
int fail(Rank& rank, const Arguments& arguments) {
  if (rank.rank() == std::stoi(arguments.at(0))) {
    rank.fail(FailureKind::permanent, "step 7: the loss is NaN");
    return 3;
  }
  return wait(rank, arguments);
}

void await_usr1() {
  sigset_t usr1;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  int got = 0;
  sigwait(&usr1, &got);
}

/// Rank 1 reports a lost peer once it gets SIGUSR1. The others wait.
int lost_peer(Rank& rank, const Arguments& arguments) {
  if (rank.rank() != 1) {
    return wait(rank, arguments);
  }
  say("ready");
  await_usr1();
  rank.fail(FailureKind::consequence, "the connection to rank 0 is lost");
  say("told");
  return 1;
}

/// `awaiting A B …`: rank r reports that it waited in vain for the rank in place r: the first rank once it gets
/// SIGUSR1, the others when they hear of the abort. A rank that would wait for itself only waits. `echo` names the rank
/// itself, like a rank that repeats the abort's reason. -1 names nobody.
int awaiting(Rank& rank, const Arguments& arguments) {
  const std::string& named = arguments.at(static_cast<std::size_t>(rank.rank()));
  const int awaited = named == "echo" ? rank.rank() : std::stoi(named);
  if (awaited == rank.rank() && named != "echo") {
    return wait(rank, arguments);
  }
  say("ready");
  if (rank.rank() == 0) {
    await_usr1();
  } else {
    try {
      (void)rank.get("never", soon());
    } catch (const Error&) {
    }
  }
  rank.fail(FailureKind::consequence, "too late", awaited < 0 ? std::nullopt : std::optional(awaited));
  say("told");
  return 1;
}

/// Leaves normally when asked to stop or, with `deaf`, never. Pauses when asked to.
int stop(Rank& rank, const Arguments& arguments) {
  say("ready");
  const bool deaf = !arguments.empty();
  while (deaf || rank.stop_signal() == 0) {
    if (rank.pause_asked()) {
      rank.pause();
      say("goes on");
    }
    try {
      (void)rank.get("never", Rank::Clock::now() + std::chrono::milliseconds(20));
    } catch (const Error&) {
      if (rank.aborted()) {
        return 1;
      }
    }
  }
  rank.message("stopped", std::to_string(rank.stop_signal()));
  rank.goodbye(soon());
  return 128 + rank.stop_signal();
}

/// Hears of an abort only by its callback, on the connection's thread.
int callback(Rank& rank, const Arguments&) {
  rank.on_abort([](const std::string& reason) {
    say("aborted: " + reason);
    ::_exit(9);
  });
  say("ready");
  for (;;) {
    ::pause();
  }
}

/// Sets a key that another rank has set.
int set_twice(Rank& rank, const Arguments& arguments) {
  if (rank.rank() == 1) {
    (void)rank.get("common", soon());
  }
  rank.set("common", fmt::format("from {}", rank.rank()));
  return wait(rank, arguments);
}

/// Rank 0 does what strangers do. The job goes on meanwhile and afterwards.
int attacked(Rank& rank, const Arguments& arguments) {
  if (rank.rank() == 0) {
    const shardrun::test::Attacked attacked = shardrun::test::attack(rank.context());
    for (const std::string& outcome : attacked.outcomes) {
      rank.message("attack", outcome);
    }
    rank.message("strangers", std::to_string(attacked.strangers));
    rank.set("over", "");
  }
  (void)rank.get("over", soon());
  return exchange(rank, arguments);
}

/// Says hello with another job.
int other_job(const RankContext& context) {
  try {
    const Rank rank(context, "[train]\nsteps = 1\n", soon());
  } catch (const Error& error) {
    std::fputs(error.what(), stderr);
  }
  return 4;
}

/// Prints what it was started with.
int show(const RankContext& context) {
  std::string open;
  for (int descriptor = 3; descriptor < 256; ++descriptor) {
    open += ::fcntl(descriptor, F_GETFD) >= 0 ? fmt::format(" {}", descriptor) : "";
  }
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS",
                           "OMP_WAIT_POLICY", "SHARDRUN_LAUNCH_FD"}) {
    const char* const value = std::getenv(name);
    say(fmt::format("{}={}", name, value == nullptr ? "(unset)" : value));
  }
  say(fmt::format("port {}", std::to_string(context.port) == std::getenv("MASTER_PORT") ? "agrees" : "differs"));
  char byte = 0;
  say(fmt::format("stdin {}", ::read(STDIN_FILENO, &byte, 1)));
  struct sigaction pipe_action = {};
  ::sigaction(SIGPIPE, nullptr, &pipe_action);
  say(fmt::format("SIGPIPE {}", pipe_action.sa_handler == SIG_IGN ? "ignored" : "not ignored"));
  say(fmt::format("group {}", ::getpgrp() == ::getpid() ? "its own" : "another's"));
  say("descriptors" + open);
  Rank rank(context, "", soon());
  rank.goodbye(soon());
  return 0;
}

/// Writes many lines on both streams: long ones, empty ones, lines in pieces, and a line without an end.
int print(Rank& rank, const Arguments&) {
  for (int line = 0; line < 500; ++line) {
    const std::string text = fmt::format("rank {} line {} {}\n", rank.rank(), line, std::string(300, 'x'));
    const std::size_t cut = static_cast<std::size_t>(line) % text.size();
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
      [[maybe_unused]] ssize_t written = ::write(stream, text.data(), cut);
      written = ::write(stream, text.data() + cut, text.size() - cut);
    }
  }
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, "\nthe end", 8);
  rank.goodbye(soon());
  return 0;
}

int silent(const RankContext&) {
  say("ready");
  for (;;) {
    ::pause();
  }
}

/// Joins after a crowd of connections that send nothing and stay open.
int crowd(const RankContext& context) {
  rlimit files = {};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  std::vector<shardrun::files::FileDescriptor> silent;
  for (int i = 0; i < 60; ++i) {
    silent.push_back(shardrun::test::connect_to(context));
  }
  Rank rank(context, "", soon());
  return exchange(rank, {});
}

/// Ends its connection and lives on.
int hang_up(const RankContext& context) {
  { const Rank rank(context, "", soon()); }
  return silent(context);
}

/// `parent COUNT WHAT`: launches this many ranks that do WHAT. `alone`: as a user who may have no more processes.
/// `orphaned`: in a session of its own, in which no shell could continue it. `few`: with few descriptors, none of which
/// a stranger gives back by itself.
int parent(const Arguments& arguments) {
  for (const int request : shardrun::launch::stop_signals) {
    std::signal(request, SIG_DFL);  // what starts this process lets it ignore them, as a rank
  }
  const std::string how = arguments.size() > 2 ? arguments.at(2) : "";
  if (how == "orphaned") {
    if (const pid_t child = ::fork(); child != 0) {
      int status = 0;
      ::waitpid(child, &status, 0);
      return WIFEXITED(status) ? WEXITSTATUS(status) : 96;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::setsid();
  }
  if (how == "alone") {
    const rlimit one = {.rlim_cur = 1, .rlim_max = 1};
    ::setrlimit(RLIMIT_NPROC, &one);
    if (::getuid() == 0 && ::setuid(65534) != 0) {
      return 98;  // root has no such limit
    }
  }
  if (how == "few") {
    rlimit few = {};
    ::getrlimit(RLIMIT_NOFILE, &few);
    few.rlim_cur = 40;
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  shardrun::launch::LaunchSettings settings;
  settings.stranger_timeout = how == "few" ? std::chrono::hours(1) : settings.stranger_timeout;
  settings.arguments = {"rank", arguments.at(1)};
  settings.ranks = std::stoi(arguments.at(0));
  settings.on_output = [](const shardrun::launch::OutputLine& line) { say(std::string(line.text)); };
  try {
    return shardrun::launch::launch(settings).exit_code;
  } catch (const Error& error) {
    std::fputs(error.what(), stderr);
    std::fflush(stderr);
    ::_exit(97);  // exit() lets a sanitizer start one more process, which the limit forbids
  }
}

const std::map<std::string, int (*)(Rank&, const Arguments&)> joined_modes = {
    {"exchange", exchange}, {"wait", wait},         {"code", code},           {"goodbye", goodbye},
    {"linger", linger},     {"fail", fail},         {"stop", stop},           {"lost_peer", lost_peer},
    {"callback", callback}, {"awaiting", awaiting}, {"set_twice", set_twice}, {"attacked", attacked},
    {"print", print}};

const std::map<std::string, int (*)(const RankContext&)> modes = {
    {"show", show}, {"silent", silent}, {"hang_up", hang_up}, {"crowd", crowd}, {"other_job", other_job}};

}  // namespace

int main(int count, char** words) {
  const Arguments arguments(words + 2, words + count);
  const std::string mode = words[1];
  try {
    if (mode == "parent") {
      return parent(arguments);
    }
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, nullptr);
    const RankContext context = shardrun::launch::take_rank_context().value();
    if (const auto found = modes.find(mode); found != modes.end()) {
      return found->second(context);
    }
    Rank rank(context, "", soon());
    try {
      return joined_modes.at(mode)(rank, arguments);
    } catch (const Error& error) {
      rank.fail(FailureKind::own, error.message());
      return 1;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 99;
  }
}
