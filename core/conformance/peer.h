#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace shardrun::conformance {

/// A key-value store in shared memory, for processes that have its descriptor. Any thread can use the store. It stays
/// usable if a process ends at any time.
class Store {
 public:
  Store();
  /// Opens a store that another process made.
  explicit Store(int descriptor);
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store();

  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }

  /// Sets a key. When this returns, other processes can read the value, even if this process is killed. Throws
  /// Error{internal} if the key is already set or the store is full.
  void set(std::string_view key, std::string_view value);
  /// Waits for a key until `deadline` (nanoseconds of CLOCK_MONOTONIC). Returns nothing if the key is still not set
  /// then, or when abort() is called.
  [[nodiscard]] std::optional<std::string> get(std::string_view key, std::int64_t deadline);

  /// Makes the waits of all processes end.
  void abort() noexcept;
  [[nodiscard]] bool aborted() const noexcept;

 private:
  struct Shared;

  [[nodiscard]] std::optional<std::string> find(std::string_view key) const;

  int descriptor_;
  Shared* shared_;
};

/// Thrown when a plugin breaks a rule. The text says which.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws Failure unless `holds`.
inline void require(bool holds, const std::string& what) {
  if (!holds) {
    throw Failure(what);
  }
}

/// Calls `act`, which must fail, and returns its error. Throws Failure if it does not fail.
template <class Act>
Error error_of(const std::string& what, Act act) {
  try {
    act();
  } catch (const Error& error) {
    return error;
  }
  throw Failure(what + " did not fail");
}

template <class Act>
ErrorCode code_of(const std::string& what, Act act) {
  return error_of(what, std::move(act)).code();
}

/// The report of a rank that only failed because another rank did.
constexpr const char* other_failed = "ended because another rank had failed";

/// The time `seconds` from now, in nanoseconds of CLOCK_MONOTONIC.
[[nodiscard]] std::int64_t after(double seconds);

/// A limit in seconds for what a case does. Only a plugin that hangs reaches it.
constexpr double timeout_s = 20;

/// This process as one of the processes that run cases together, for any kind of plugin.
class Peer {
 public:
  Peer(Store& store, std::uint32_t rank) : store_(store), rank_(rank) {}

  [[nodiscard]] std::uint32_t rank() const noexcept { return rank_; }

  /// Waits until all ranks below `n` have called it. Each barrier needs its own name. Throws Failure as hear() does.
  void meet(const std::string& place, std::uint32_t n);
  /// Publishes a value. On other ranks, hear() waits for the value, and throws Failure after 2 * timeout_s.
  void tell(const std::string& name, const std::string& value);
  [[nodiscard]] std::string hear(const std::string& name, std::uint32_t from);

  /// Adds a note on what the case leaves out, and why, unless the note exists already.
  void note(std::string text);
  /// Removes and returns the notes since the last call.
  [[nodiscard]] std::vector<std::string> take_notes() { return std::exchange(notes_, {}); }

 protected:
  [[nodiscard]] Store& store() const noexcept { return store_; }

 private:
  Store& store_;
  std::uint32_t rank_;
  std::vector<std::string> notes_;
};

}  // namespace shardrun::conformance
