#include "plugins/loader/guard.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/base/error.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHARDRUN_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SHARDRUN_SANITIZED 1
#endif
#endif

namespace shardrun::plugins {

/// What the signal handler may read of a guard.
struct GuardNames {
  static std::string_view plugin(const CallGuard& guard) noexcept { return guard.plugin_; }
  static std::string_view call(const CallGuard& guard) noexcept { return guard.call_; }
};

namespace {

constexpr std::array<int, 7> faults = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP};
std::array<struct sigaction, faults.size()> before = {};

std::atomic<std::chrono::milliseconds::rep> limit_ms = 60'000;

/// The innermost guard of this thread.
thread_local const CallGuard* innermost = nullptr;
/// One of any thread: for what plugins do on threads of their own.
std::atomic<const CallGuard*> of_any_thread = nullptr;
static_assert(std::atomic<const CallGuard*>::is_always_lock_free);

const CallGuard* guard_here() noexcept {
  const CallGuard* const here = innermost;
  return here != nullptr ? here : of_any_thread.load();
}

/// Async-signal-safe, as all that it calls.
class Line {
 public:
  Line& operator<<(std::string_view text) noexcept {
    const std::size_t taken = std::min(text.size(), bytes_.size() - size_);
    std::memcpy(bytes_.data() + size_, text.data(), taken);
    size_ += taken;
    return *this;
  }
  Line& operator<<(int number) noexcept {
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

/// "shardrun: PLUGIN, CALL: it DID"; `what` writes the end.
template <class What>
void say(const CallGuard& guard, What what) noexcept {
  Line line;
  line << "shardrun: " << GuardNames::plugin(guard).substr(0, 1024) << ", " << GuardNames::call(guard).substr(0, 256)
       << ": it ";
  what(line);
  line.write();
}

[[noreturn]] void end_process(int code) noexcept {
  for (;;) {
    ::syscall(SYS_exit_group, code);
  }
}

[[noreturn]] void refuse_exit(const CallGuard& guard, std::string_view function, int status) noexcept {
  say(guard, [&](Line& line) { line << "called " << function << "(" << status << "), which no plugin may"; });
  end_process(status != 0 ? status : exit_code(ErrorCode::plugin));
}

extern "C" void shardrun_on_fault(int signal, siginfo_t* info, void*) {
  const int error_number = errno;
  if (const CallGuard* guard = guard_here()) {
    const char* const name = ::sigabbrev_np(signal);
    say(*guard, [&](Line& line) { line << "crashed by signal " << signal << " (SIG" << name << ")"; });
  }
  // What was to be done about it before is done now: the instruction runs again, and what was sent is sent again.
  for (std::size_t i = 0; i < faults.size(); ++i) {
    if (faults[i] == signal) {
      ::sigaction(signal, &before[i], nullptr);
    }
  }
  if (info->si_code <= 0) {
    ::raise(signal);
  }
  errno = error_number;
}

extern "C" void shardrun_on_exit(int status, void*) {
  if (const CallGuard* guard = guard_here()) {
    refuse_exit(*guard, "exit", status);
  }
}

extern "C" void shardrun_on_quick_exit() {
  if (const CallGuard* guard = guard_here()) {
    refuse_exit(*guard, "quick_exit", 0);
  }
}

/// Once, before the first plugin can have handlers of its own. A stack that overflows leaves no room for a handler, so
/// that has one of its own on this thread.
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
    : plugin_(plugin), call_(call) {
  watch_this_process();
  if (limit) {
    sigset_t all;
    sigset_t mask;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &mask);
    try {
      clock_ = std::thread([this, most = *limit] { end_late(most); });
    } catch (const std::system_error&) {
      // Where no thread can be had, nothing is late.
    }
    ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  }
  outer_ = std::exchange(innermost, this);
  const CallGuard* none = nullptr;
  of_any_thread.compare_exchange_strong(none, this);
}

CallGuard::~CallGuard() {
  const CallGuard* self = this;
  of_any_thread.compare_exchange_strong(self, outer_);
  innermost = outer_;
  if (clock_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_one();
    clock_.join();
  }
}

/// Counts waits, each of which a process that is stopped ends once however long it was.
void CallGuard::end_late(std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds tick{50};
  std::unique_lock lock(mutex_);
  for (std::chrono::milliseconds waited{0}; waited < limit; waited += tick) {
    if (changed_.wait_for(lock, std::min(tick, limit - waited), [this] { return is_over_; })) {
      return;
    }
  }
  say(*this, [&](Line& text) { text << "did not come back within " << static_cast<int>(limit.count()) << " ms"; });
  end_process(exit_code(ErrorCode::plugin));
}

}  // namespace shardrun::plugins

#ifndef SHARDRUN_SANITIZED
// In place of the C library's, which plugins would end the process with unseen. Sanitizers have their own.
extern "C" [[noreturn]] void _exit(int status) {
  using namespace shardrun::plugins;
  if (const CallGuard* guard = guard_here()) {
    refuse_exit(*guard, "_exit", status);
  }
  end_process(status);
}

extern "C" [[noreturn]] void _Exit(int status) noexcept { _exit(status); }
#endif
