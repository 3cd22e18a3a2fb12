#include "tests/unit/launch/job.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <utility>

#include "tests/support/catch.h"

namespace shardrun::test {
namespace {

std::vector<void (*)(int)> signal_actions() {
  std::vector<void (*)(int)> actions;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCHLD, SIGPIPE}) {
    struct sigaction action = {};
    ::sigaction(signal, nullptr, &action);
    actions.push_back(action.sa_handler);
  }
  return actions;
}

bool is_gone(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

}  // namespace

LaunchJob::LaunchJob(int ranks, std::vector<std::string> what)
    : actions_before(signal_actions()), descriptors_before(open_descriptors()) {
  settings.program = SHARDRUN_RANK_PROGRAM;
  settings.arguments = std::move(what);
  settings.arguments.insert(settings.arguments.begin(), "rank");
  settings.ranks = ranks;
  settings.on_start = [this](const std::vector<pid_t>& started) { pids = started; };
  settings.on_output = [this](const launch::OutputLine& line) {
    std::vector<Text>& lines = line.stream == launch::Stream::output ? output : errors;
    lines.push_back({line.rank, std::string(line.text)});
    if (then && line.stream == launch::Stream::output) {
      then(Text(lines.back()));
    }
  };
  settings.on_message = [this](const launch::RankMessage& message) {
    messages.push_back({message.rank, fmt::format("{}: {}", message.kind, message.bytes)});
  };
  settings.on_log = [this](std::string_view line) { logs.emplace_back(line); };
  settings.on_notice = [this](std::string_view line) {
    notices.emplace_back(line);
    if (then_notice) {
      then_notice(notices.back());
    }
  };
}

launch::LaunchResult LaunchJob::run() {
  launch::LaunchResult result = launch::launch(settings);
  check_nothing_left();
  return result;
}

void LaunchJob::check_nothing_left() const {
  CHECK(std::all_of(pids.begin(), pids.end(), is_gone));
  CHECK(open_descriptors() == descriptors_before);
  CHECK(signal_actions() == actions_before);
}

bool LaunchJob::all_said(const std::string& line) const {
  return std::count_if(output.begin(), output.end(), [&](const Text& text) { return text.text == line; }) ==
         settings.ranks;
}

std::vector<std::string> LaunchJob::lines_of(int rank) const {
  std::vector<std::string> lines;
  for (const Text& line : output) {
    if (line.rank == rank) {
      lines.push_back(line.text);
    }
  }
  return lines;
}

bool LaunchJob::logged(const std::string& part) const {
  return std::any_of(logs.begin(), logs.end(), [&](const std::string& line) { return line.find(part) != line.npos; });
}

std::string cause_of(const launch::LaunchResult& result) {
  if (!result.cause) {
    return "none";
  }
  const launch::RootCause& cause = *result.cause;
  std::string end = cause.exit_code ? fmt::format("code {}", *cause.exit_code) : fmt::format("signal {}", cause.signal);
  return fmt::format("[{}] {} [{}]", cause.rank, cause.text, end);
}

int open_descriptors() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

void stop_process(pid_t pid) {
  ::kill(pid, SIGSTOP);
  siginfo_t info = {};
  ::waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED | WNOWAIT);
}

}  // namespace shardrun::test
