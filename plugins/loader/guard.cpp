#include "plugins/loader/guard.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/process.h"

namespace shardrun::plugins {

/// The part of a guard that a signal handler may read, on any thread at any time. It is never destroyed.
struct GuardNames {
  std::string plugin;
  std::string call;
};

namespace {

constexpr std::array<int, 7> faults = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP};
std::array<struct sigaction, faults.size()> before = {};

std::atomic<std::chrono::milliseconds::rep> limit_ms = 60'000;

/// The innermost guard of this thread.
thread_local const CallGuard* innermost = nullptr;

// The number of guards and the latest one, for plugins' own threads, which have no guard. A forked process inherits the
// parent's values, so the process id is kept with them.
std::atomic<int> living = 0;
std::atomic<const GuardNames*> latest = nullptr;
std::atomic<pid_t> guarded_process = 0;
static_assert(std::atomic<const GuardNames*>::is_always_lock_free);

/// Makes names that are never destroyed. Returns the same object for equal names.
const GuardNames* lasting_names(std::string_view plugin, std::string_view call) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::string, GuardNames, std::less<>>;
  std::string key = fmt::format("{}\n{}", plugin, call);
  const std::lock_guard lock(mutex);
  return &all.try_emplace(std::move(key), GuardNames{std::string(plugin), std::string(call)}).first->second;
}

/// A guard that exists in this process, for messages.
struct Guarded {
  const GuardNames* names = nullptr;
  bool is_this_thread = false;
};

Guarded guard_here() noexcept {
  if (guarded_process.load() != ::getpid()) {
    return {};
  }
  if (innermost != nullptr) {
    return {&innermost->names(), true};
  }
  return {living.load() > 0 ? latest.load() : nullptr, false};
}

/// Builds one line of text. Everything here is async-signal-safe.
class SignalSafeLine {
 public:
  SignalSafeLine& operator<<(std::string_view text) noexcept {
    const std::size_t taken = std::min(text.size(), bytes_.size() - size_);
    std::memcpy(bytes_.data() + size_, text.data(), taken);
    size_ += taken;
    return *this;
  }
  SignalSafeLine& operator<<(int number) noexcept {
    std::array<char, 12> digits{};
    std::size_t at = digits.size();
    for (unsigned rest = static_cast<unsigned>(std::abs(number)); rest != 0 || at == digits.size(); rest /= 10) {
      digits[--at] = static_cast<char>('0' + rest % 10);
    }
    return *this << (number < 0 ? "-" : "") << std::string_view(digits.data() + at, digits.size() - at);
  }
  void write() noexcept {
    *this << "\n";
    for (std::size_t done = 0; done < size_;) {
      // After POLLOUT, a write of this size to a pipe never blocks, even if no one reads the other end.
      static_assert(sizeof(bytes_) <= PIPE_BUF);
      constexpr int patience_ms = 1000;
      pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
      if (::poll(&ready, 1, patience_ms) == 0) {
        return;
      }
      const ssize_t written = ::write(STDERR_FILENO, bytes_.data() + done, size_ - done);
      if (written < 0 && errno != EINTR) {
        return;
      }
      done += written < 0 ? 0 : static_cast<std::size_t>(written);
    }
  }

 private:
  std::array<char, 2048> bytes_{};
  std::size_t size_ = 0;
};

/// Writes the line "shardrun: PLUGIN, CALL: it DID". `what` writes the end. If this thread has no guard, the line
/// says that another thread did it while the call ran.
template <class What>
void say(const Guarded& guard, What what) noexcept {
  SignalSafeLine line;
  line << "shardrun: " << std::string_view(guard.names->plugin).substr(0, 1024) << ", "
       << std::string_view(guard.names->call).substr(0, 256)
       << (guard.is_this_thread ? ": it " : ": while it ran, another thread ");
  what(line);
  line.write();
}

[[noreturn]] void refuse_exit(const Guarded& guard, std::string_view function, int status) noexcept {
  say(guard, [&](SignalSafeLine& line) { line << "called " << function << "(" << status << "), which no plugin may"; });
  end_process(status != 0 ? status : exit_code(ErrorCode::plugin));
}

/// Whether an instruction raised the signal. It then runs again after the handler, and raises the signal again.
bool comes_again(int signal, const siginfo_t& info) noexcept {
  const bool is_of_instruction = signal == SIGSEGV || signal == SIGBUS || signal == SIGILL || signal == SIGFPE;
  return is_of_instruction && info.si_code > 0 && !(signal == SIGBUS && info.si_code == BUS_MCEERR_AO);
}

extern "C" void shardrun_on_fault(int signal, siginfo_t* info, void*) {
  const int error_number = errno;
  if (const Guarded guard = guard_here(); guard.names != nullptr) {
    const char* const name = ::sigabbrev_np(signal);
    say(guard, [&](SignalSafeLine& line) { line << "crashed by signal " << signal << " (SIG" << name << ")"; });
  }
  // Restores the signal's previous action. Then the instruction runs again, or the signal is sent again.
  const bool is_sent_again = !comes_again(signal, *info);
  for (std::size_t i = 0; i < faults.size(); ++i) {
    if (faults[i] == signal) {
      struct sigaction action = before[i];
      if (is_sent_again && (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN) {
        action.sa_handler = SIG_DFL;  // a crash cannot be ignored
      }
      ::sigaction(signal, &action, nullptr);
    }
  }
  if (is_sent_again) {
    ::raise(signal);
  }
  errno = error_number;
}

extern "C" void shardrun_on_exit(int status, void*) {
  if (const Guarded guard = guard_here(); guard.names != nullptr) {
    refuse_exit(guard, "exit", status);
  }
}

extern "C" void shardrun_on_quick_exit() {
  if (const Guarded guard = guard_here(); guard.names != nullptr) {
    refuse_exit(guard, "quick_exit", 0);
  }
}

/// Installs the handlers once, before the first plugin can install its own. A stack overflow leaves no room for a
/// handler, so this thread gets a separate signal stack.
void watch_this_process() {
  static std::once_flag once;
  std::call_once(once, [] {
    alignas(16) static std::array<char, std::size_t{64} * 1024> room;
    stack_t stack = {};
    if (::sigaltstack(nullptr, &stack) == 0 && (stack.ss_flags & SS_DISABLE) != 0) {
      stack = {.ss_sp = room.data(), .ss_flags = 0, .ss_size = room.size()};
      ::sigaltstack(&stack, nullptr);
    }
    struct sigaction action = {};
    action.sa_sigaction = shardrun_on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (std::size_t i = 0; i < faults.size(); ++i) {
      ::sigaction(faults[i], &action, &before[i]);
    }
    ::on_exit(shardrun_on_exit, nullptr);
    ::at_quick_exit(shardrun_on_quick_exit);
  });
}

}  // namespace

void set_call_limit(std::chrono::milliseconds limit) noexcept { limit_ms = limit.count(); }

std::chrono::milliseconds call_limit() noexcept { return std::chrono::milliseconds(limit_ms.load()); }

CallGuard::CallGuard(std::string_view plugin, std::string_view call, std::optional<std::chrono::milliseconds> limit)
    : names_(lasting_names(plugin, call)), process_(::getpid()), outer_(innermost) {
  watch_this_process();
  if (limit) {
    sigset_t all;
    sigset_t mask;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &mask);
    try {
      clock_ = std::thread([this, most = *limit] { end_late(most); });
    } catch (const std::system_error&) {
      // If the thread cannot be started, the limit is not enforced.
    }
    ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  }
  if (guarded_process.exchange(process_) != process_) {
    living = 0;  // the inherited values are the parent's
  }
  latest = names_;
  ++living;
  innermost = this;
}

CallGuard::~CallGuard() {
  if (::getpid() != process_) {
    // The plugin forked, and the child returned too: it must not continue as a second copy of this process.
    say({names_, true},
        [](SignalSafeLine& line) { line << "started a process by fork and let it return, which no plugin may"; });
    end_process(exit_code(ErrorCode::plugin));
  }
  innermost = outer_;
  if (outer_ != nullptr) {
    latest = outer_->names_;
  }
  --living;
  if (clock_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_one();
    clock_.join();
  }
}

const GuardNames& CallGuard::names() const noexcept { return *names_; }

/// Counts short waits instead of reading a clock, because a stop of the process, however long, ends only one of them.
void CallGuard::end_late(std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds tick{50};
  std::unique_lock lock(mutex_);
  for (std::chrono::milliseconds waited{0}; waited < limit; waited += tick) {
    if (changed_.wait_for(lock, std::min(tick, limit - waited), [this] { return is_over_; })) {
      return;
    }
  }
  say({names_, true},
      [&](SignalSafeLine& text) { text << "did not come back within " << static_cast<int>(limit.count()) << " ms"; });
  end_process(exit_code(ErrorCode::plugin));
}

}  // namespace shardrun::plugins

#if !defined(SHARDRUN_ASAN) && !defined(SHARDRUN_TSAN)
// Replaces the C library's _exit, so that a plugin cannot end the process unnoticed. Sanitizers replace it themselves.
extern "C" [[noreturn]] void _exit(int status) {
  using namespace shardrun::plugins;
  if (const Guarded guard = guard_here(); guard.names != nullptr) {
    refuse_exit(guard, "_exit", status);
  }
  shardrun::end_process(status);
}

extern "C" [[noreturn]] void _Exit(int status) noexcept { _exit(status); }
#endif
