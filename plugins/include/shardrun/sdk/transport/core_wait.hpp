#pragma once

/// How long threads could run and had no core.

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>

namespace shardrun::sdk {

/// The time for which a thread could run and had no core, because other threads had the cores or because a limit of
/// the thread's control group was used up. Linux counts this time.
class CoreWait {
 public:
  CoreWait() = default;
  CoreWait(const CoreWait&) = delete;
  CoreWait& operator=(const CoreWait&) = delete;
  ~CoreWait() {
    if (file_ >= 0) {
      ::close(file_);
    }
  }

  /// This time in nanoseconds, since the calling thread began. Nothing if the system does not tell. REQUIRES: all calls
  /// are made on one thread.
  [[nodiscard]] std::optional<std::int64_t> nanoseconds() noexcept {
    if (file_ < 0) {
      file_ = ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    }
    std::array<char, 96> text{};
    if (::pread(file_, text.data(), text.size() - 1, 0) <= 0) {
      return std::nullopt;
    }
    // The file has the nanoseconds in which the thread ran, those in which it waited for a core, and how often it ran.
    char* after_first = nullptr;
    static_cast<void>(std::strtoll(text.data(), &after_first, 10));
    return std::strtoll(after_first, nullptr, 10);
  }

 private:
  int file_ = -1;
};

/// Nanoseconds for which the calling thread has so far given its core to others while it waited for other ranks. They
/// are part of its CoreWait. Code of this plugin that calls sched_yield adds to them.
[[nodiscard]] inline std::int64_t& yielded() noexcept {
  // Each thread has this memory from its start. Leak checkers cannot find what a plugin's thread_local makes later.
  [[gnu::tls_model("initial-exec")]] thread_local std::int64_t nanoseconds = 0;
  return nanoseconds;
}

}  // namespace shardrun::sdk
