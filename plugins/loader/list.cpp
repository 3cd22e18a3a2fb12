#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/files/descriptor.h"
#include "core/files/trust.h"
#include "plugins/loader/call.h"
#include "plugins/loader/find.h"
#include "plugins/loader/guard.h"
#include "plugins/loader/library.h"
#include "plugins/loader/model.h"
#include "plugins/loader/plugin.h"
#include "plugins/loader/strategy.h"

namespace shardrun::plugins {
namespace {

// A child whose function succeeded writes the first text at its end. One whose function threw writes the second.
constexpr std::string_view went_well = "\nshardrun: it went well\n";
constexpr std::string_view threw = "\nshardrun: it threw: ";

/// Reads a pipe, and keeps the last 4 KiB.
class LastWords {
 public:
  /// Returns false at the end of the pipe, or if there is nothing to read.
  bool take(int pipe) {
    std::array<char, 4096> bytes{};
    const ssize_t count = ::read(pipe, bytes.data(), bytes.size());
    text_.append(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    text_.erase(0, text_.size() - std::min(text_.size(), kept));
    return count > 0 || (count < 0 && errno == EINTR);
  }
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  static constexpr std::size_t kept = 4096;
  std::string text_;
};

std::string last_line(std::string text) {
  while (text.ends_with('\n')) {
    text.pop_back();
  }
  return text.substr(text.rfind('\n') + 1);
}

void write_words(int file, std::string_view first, std::string_view second) {
  const std::string text = fmt::format("{}{}", first, second);
  [[maybe_unused]] const ssize_t written = ::write(file, text.data(), text.size());
}

[[noreturn]] void run_apart(pid_t parent, int words, const std::function<void()>& act) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setpgid(0, 0);
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(nothing, STDOUT_FILENO);
  ::dup2(words, STDERR_FILENO);
  if (::getppid() == parent) {
    try {
      act();
      write_words(words, went_well, "");
    } catch (const std::exception& error) {
      write_words(words, threw, printable(excerpt(error.what())));
    } catch (...) {
      write_words(words, threw, "something that is no exception");
    }
  }
  if (::getpgrp() == ::getpid()) {
    ::kill(0, SIGKILL);  // kills also everything that the plugin started
  }
  ::_exit(1);
}

/// Reads the child's output until it ends. Returns false if the child did not end in time.
bool await_end(pid_t process, int pipe, LastWords& words, std::chrono::milliseconds limit) {
  // An old kernel has no pidfd. Then the child counts as ended when the pipe has no writer left.
  const files::FileDescriptor watched(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
  const auto end = std::chrono::steady_clock::now() + limit;
  for (bool is_open = true; is_open || watched.is_open();) {
    std::array<pollfd, 2> ready = {pollfd{.fd = watched.get(), .events = POLLIN, .revents = 0},
                                   pollfd{.fd = is_open ? pipe : -1, .events = POLLIN, .revents = 0}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      return false;
    }
    if (::poll(ready.data(), ready.size(), static_cast<int>(left.count())) <= 0) {
      continue;
    }
    if (ready[0].revents != 0) {
      return true;
    }
    is_open = words.take(pipe);
  }
  return true;
}

/// Runs `act` in a child process, so that a plugin that ends its process ends only the child. The child's standard
/// input and output are /dev/null. Throws Error{plugin} with the text of what `act` threw, or with the cause if the
/// child ended or did not finish within `limit`. On return all of the child's process group has ended. REQUIRES: no
/// other thread holds a lock that `act` may need, and no plugin is open in this process.
void try_apart(std::string_view plugin, std::chrono::milliseconds limit, const std::function<void()>& act) {
  std::array<int, 2> ends = {-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw files::system_error("make", "a pipe for the words of a plugin", errno);
  }
  const files::FileDescriptor pipe(ends[0]);
  files::FileDescriptor words(ends[1]);
  std::fflush(nullptr);  // so that buffered output is written by this process only
  const pid_t parent = ::getpid();
  const pid_t process = ::fork();
  if (process < 0) {
    throw files::system_error("start", "a process to try a plugin in", errno);
  }
  if (process == 0) {
    run_apart(parent, words.get(), act);
  }
  ::setpgid(process, process);
  words = files::FileDescriptor();
  constexpr std::chrono::seconds to_say_so{2};  // the child ends itself at the limit, and reports where it was
  LastWords last;
  const bool has_ended = await_end(process, pipe.get(), last, limit + to_say_so);
  ::kill(-process, SIGKILL);
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  ::fcntl(pipe.get(), F_SETFL, O_NONBLOCK);  // a process that has left the child's group may still have the pipe open
  constexpr int most = 32;                   // a full pipe, and a little more
  for (int taken = 0; taken < most && last.take(pipe.get()); ++taken) {
  }
  const std::string& text = last.text();
  if (text.ends_with(went_well)) {
    return;
  }
  if (const std::size_t at = text.rfind(threw); at != std::string::npos) {
    throw Error(ErrorCode::plugin, text.substr(at + threw.size()));
  }
  constexpr std::string_view own = "shardrun: ";
  if (const std::string line = last_line(text); line.starts_with(own)) {
    throw Error(ErrorCode::plugin, printable(excerpt(line.substr(own.size()))));
  }
  throw Error(ErrorCode::plugin,
              fmt::format("{}: the process that it was tried in {}", plugin,
                          !has_ended            ? fmt::format("did not come back within {} ms", limit.count())
                          : WIFSIGNALED(status) ? fmt::format("was ended by signal {}", WTERMSIG(status))
                                                : fmt::format("exited with code {}", WEXITSTATUS(status))));
}

/// Sets the ABI and version of `info`. Opens the plugin in a forked process, where it affects no other. Throws Error.
void try_out(const Candidate& file, PluginInfo& info) {
  files::require_trusted(file.path);
  const sr_manifest raw = read_manifest(file.path);
  info.abi = abi_text(raw.major, raw.minor);
  info.version = checked_manifest(raw, file).version;
  const LogSink nowhere = [](LogLevel, std::string_view, std::string_view) {};
  try_apart(label_of(file), call_limit(), [&] { (void)Plugin::open_file(file, nowhere); });
}

void describe(const Candidate& file, PluginInfo& info) {
  const Plugin plugin = Plugin::open_file(file, {});
  info.options = plugin.options();
  if (file.kind == to_string(PluginKind::model)) {
    for (const std::shared_ptr<const ModelOp>& op : declared_ops(plugin)) {
      info.ops.emplace_back(op->name, op->help);
    }
  }
  info.reads_sharding = file.kind == to_string(PluginKind::strategy) && reads_sharding(plugin);
}

template <class Act>
void noting_errors(PluginInfo& info, Act act) {
  try {
    act();
  } catch (const std::exception& error) {
    info.error = error.what();
  }
}

}  // namespace

std::vector<PluginInfo> list_plugins(const Directories& directories) {
  std::vector<PluginInfo> list;
  std::map<std::string, std::filesystem::path> first;  // by file name
  for (const std::filesystem::path& directory : directories) {
    for (const Candidate& file : candidates_in(directory)) {
      PluginInfo info;
      info.path = file.path;
      info.kind = file.kind;
      info.name = file.name;
      const auto [winner, is_first] = first.try_emplace(file.path.filename().string(), file.path);
      if (!is_first) {
        info.shadowed_by = winner->second;
      }
      noting_errors(info, [&] { try_out(file, info); });
      list.push_back(std::move(info));
    }
  }
  for (PluginInfo& info : list) {
    if (info.error.empty()) {
      noting_errors(info, [&] { describe({info.path, info.kind, info.name}, info); });
    }
  }
  return list;
}

}  // namespace shardrun::plugins
