#pragma once

#include <atomic>
#include <cstdint>

namespace shardrun::test {

// This program replaces functions of the C library that Gloo calls.

/// What this program's threads write to sockets by `writev`, as Gloo does.
struct Writes {
  std::atomic<int> count = 0;
  std::atomic<int> exposed = 0;  ///< those made with SIGPIPE not blocked
  std::atomic<std::int64_t> room =
      INT64_MAX;  ///< bytes that long writes still get through; then they have to be retried
};

[[nodiscard]] Writes& writes() noexcept;

/// Holds the first thread that asks for the peer of a socket, as Gloo does when a connection has been made, until it
/// is released.
class HeldConnection {
 public:
  HeldConnection();
  ~HeldConnection() { release(); }
  HeldConnection(const HeldConnection&) = delete;
  HeldConnection& operator=(const HeldConnection&) = delete;

  void release();
  /// Whether a thread is being held.
  [[nodiscard]] bool holds() const;
};

/// Whether SIGPIPE is blocked for this thread.
[[nodiscard]] bool is_sigpipe_blocked() noexcept;

}  // namespace shardrun::test
