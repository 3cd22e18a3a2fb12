#include "core/launch/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <span>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/launch/environment.h"
#include "core/launch/signals.h"

namespace shardrun::launch {
namespace {

struct Pipe {
  files::FileDescriptor read_end;
  files::FileDescriptor write_end;
};

/// The child's report to the trouble pipe if it fails.
struct Trouble {
  enum Stage : int { descriptors, exec } stage;
  int error_number;
};

std::string_view advice(int error_number) {
  switch (error_number) {
    case EMFILE:
    case ENFILE: return "; raise the limit of open files (ulimit -n), each rank needs 3 in the launcher";
    case EAGAIN: return "; raise the limit of processes (ulimit -u, or pids.max of the container) or use fewer ranks";
    case ENOMEM: return "; free memory or use fewer ranks";
    default: return "";
  }
}

Error refused(std::string_view attempted, int error_number) {
  return Error(ErrorCode::io, fmt::format("cannot {}: {}{}", attempted, std::generic_category().message(error_number),
                                          advice(error_number)));
}

/// A copy with close-on-exec and a number above handed_over_descriptor, so that the child's dup2 does not overwrite it.
files::FileDescriptor out_of_the_way(int descriptor) {
  files::FileDescriptor copy(::fcntl(descriptor, F_DUPFD_CLOEXEC, handed_over_descriptor + 1));
  if (!copy.is_open()) {
    throw refused("open a pipe to a rank", errno);
  }
  return copy;
}

Pipe make_pipe() {
  std::array<int, 2> ends = {};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw refused("open a pipe to a rank", errno);
  }
  const files::FileDescriptor read_end(ends[0]);
  const files::FileDescriptor write_end(ends[1]);
  return {out_of_the_way(read_end.get()), out_of_the_way(write_end.get())};
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) {
    pointers.push_back(const_cast<char*>(text.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

/// Everything that the child needs between fork and exec. There it must not allocate or lock.
struct Child {
  pid_t launcher;
  const char* program;
  char* const* arguments;
  char* const* environment;
  std::array<int, 4> descriptors;  ///< to become 0, 1, 2 and handed_over_descriptor
  int trouble;
};

[[noreturn]] void give_up(const Child& child, Trouble::Stage stage) {
  const Trouble trouble{stage, errno};
  [[maybe_unused]] const ssize_t written = ::write(child.trouble, &trouble, sizeof trouble);
  ::_exit(127);
}

[[noreturn]] void become(const Child& child) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != child.launcher) {
    ::_exit(127);  // the launcher died before prctl was called
  }
  ::setpgid(0, 0);
  for (const int caught : SignalPipe::caught) {
    ::signal(caught, SIG_DFL);
  }
  ::signal(SIGPIPE, SIG_IGN);
  // Ignored, because batch systems and ends of sessions send these signals to every process. The launcher asks the
  // ranks to stop over their connections instead.
  for (const int request : stop_signals) {
    ::signal(request, SIG_IGN);
  }
  for (std::size_t i = 0; i < child.descriptors.size(); ++i) {
    if (::dup2(child.descriptors[i], static_cast<int>(i)) < 0) {
      give_up(child, Trouble::descriptors);
    }
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(child.program, child.arguments, child.environment);
  give_up(child, Trouble::exec);
}

/// Signals are blocked during fork, because a handler of the launcher must not run in the child.
pid_t fork_with_signals_blocked(const Child& child) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) {
    become(child);
  }
  const int error_number = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) {
    throw refused("start a process", error_number);
  }
  return pid;
}

}  // namespace

StartedProcess start_process(const ProcessStart& start) {
  const std::vector<char*> arguments = pointers_to(start.arguments);
  const std::vector<char*> environment = pointers_to(start.environment);
  const files::FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing.is_open()) {
    throw refused("open /dev/null", errno);
  }
  const files::FileDescriptor input = out_of_the_way(start.input >= 0 ? start.input : nothing.get());
  Pipe output = make_pipe();
  Pipe errors = make_pipe();
  Pipe handed_over = make_pipe();
  Pipe trouble = make_pipe();
  files::write_all(handed_over.write_end, std::as_bytes(std::span(start.handed_over)), "a pipe to a rank");
  handed_over.write_end = {};

  const pid_t pid = fork_with_signals_blocked(
      {.launcher = ::getpid(),
       .program = start.program.c_str(),
       .arguments = arguments.data(),
       .environment = environment.data(),
       .descriptors = {input.get(), output.write_end.get(), errors.write_end.get(), handed_over.read_end.get()},
       .trouble = trouble.write_end.get()});
  trouble.write_end = {};
  return {.pid = pid,
          .output = std::move(output.read_end),
          .errors = std::move(errors.read_end),
          .trouble = std::move(trouble.read_end)};
}

std::optional<Error> start_error(int trouble_pipe, const std::string& program) {
  pollfd told = {.fd = trouble_pipe, .events = POLLIN, .revents = 0};
  Trouble trouble{};
  if (::poll(&told, 1, 0) != 1 || ::read(trouble_pipe, &trouble, sizeof trouble) != sizeof trouble) {
    return std::nullopt;
  }
  return refused(trouble.stage == Trouble::exec ? fmt::format("run '{}'", program) : "set up a rank's descriptors",
                 trouble.error_number);
}

std::uint64_t raise_descriptor_limit(std::uint64_t needed) {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) {
    return 0;
  }
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, needed);
  const bool raised = ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
  return raised && limit.rlim_cur == needed ? 0 : std::max(before, limit.rlim_cur);
}

}  // namespace shardrun::launch
