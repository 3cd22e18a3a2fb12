#include "core/conformance/sandbox.h"

#include <fmt/format.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <vector>

#include "core/base/error.h"
#include "core/conformance/peer.h"

namespace shardrun::conformance {
namespace {

struct Watched {
  unsigned number;
  const char* name;
};

constexpr Watched watched[] = {
#ifdef SYS_open
    {SYS_open, "open"},     {SYS_creat, "creat"},       {SYS_fork, "fork"},           {SYS_vfork, "vfork"},
#endif
    {SYS_openat, "openat"}, {SYS_openat2, "openat2"},   {SYS_socket, "socket"},       {SYS_connect, "connect"},
    {SYS_execve, "execve"}, {SYS_execveat, "execveat"}, {SYS_getrandom, "getrandom"},
};

volatile std::sig_atomic_t first_call = -1;

/// The signal handler for a refused call: records the call and makes it return EPERM, so that the caller goes on.
void on_call(int, siginfo_t* info, void* context) {
  if (first_call < 0) {
    first_call = info->si_syscall;
  }
  auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  machine.gregs[REG_RAX] = -EPERM;
#elif defined(__aarch64__)
  machine.regs[0] = static_cast<unsigned long long>(-EPERM);
#else
#error "which register holds what a system call returns?"
#endif
}

sock_filter statement(std::uint16_t code, std::uint32_t value) { return {.code = code, .jt = 0, .jf = 0, .k = value}; }

/// Starts to refuse system calls. Returns false if the system cannot filter them.
bool start_watching() {
  struct sigaction action = {};
  action.sa_sigaction = on_call;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSYS, &action, nullptr);
  std::vector<sock_filter> filter = {statement(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const Watched& call : watched) {
    filter.push_back({.code = BPF_JMP | BPF_JEQ | BPF_K, .jt = 0, .jf = 1, .k = call.number});
    filter.push_back(statement(BPF_RET | BPF_K, SECCOMP_RET_TRAP));
  }
  filter.push_back(statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program = {.len = static_cast<unsigned short>(filter.size()), .filter = filter.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

std::string first_call_text() {
  for (const Watched& call : watched) {
    if (static_cast<int>(call.number) == first_call) {
      return fmt::format("it calls {}; it may touch nothing but memory", call.name);
    }
  }
  return "";
}

[[noreturn]] void watch_in_child(const std::function<void()>& prepare, const std::function<void()>& act, int report) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string problem;
  try {
    prepare();
    if (!start_watching()) {
      fmt::print(stderr, "this system has no filters of system calls: what a plugin touches is not watched\n");
    }
    act();
  } catch (const std::exception& failure) {
    problem = failure.what();
  }
  // A refused call takes precedence, because it causes later failures.
  const std::string call = first_call_text();
  problem = call.empty() ? problem : call;
  const bool told = write(report, problem.data(), problem.size()) == static_cast<ssize_t>(problem.size());
  _exit(told ? 0 : 1);
}

std::string read_all(int descriptor) {
  std::string text;
  std::array<char, 512> block = {};
  for (ssize_t count = 0; (count = read(descriptor, block.data(), block.size())) > 0;) {
    text.append(block.data(), static_cast<std::size_t>(count));
  }
  return text;
}

}  // namespace

void watch_calls(const std::function<void()>& prepare, const std::function<void()>& act) {
  int ends[2];
  if (pipe(ends) != 0) {
    throw Error(ErrorCode::io, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  const pid_t child = fork();
  if (child < 0) {
    throw Error(ErrorCode::io, fmt::format("cannot start a process: {}", std::strerror(errno)));
  }
  if (child == 0) {
    close(ends[0]);
    watch_in_child(prepare, act, ends[1]);
  }
  close(ends[1]);
  std::string problem = read_all(ends[0]);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    problem = fmt::format("it was ended by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  } else if (WEXITSTATUS(status) != 0) {
    problem = fmt::format("it exited with code {}", WEXITSTATUS(status));
  }
  require(problem.empty(), problem);
}

}  // namespace shardrun::conformance
