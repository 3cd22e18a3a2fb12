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

/// A key-value store in memory that processes share through a descriptor. Any thread. A process may end at any time.
class Store {
 public:
  Store();
  /// Opens one that another process made.
  explicit Store(int descriptor);
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store();

  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }

  /// Others have the value when it returns, even if this process is killed at once. Throws Error{internal} where the
  /// key is already set or the store is full.
  void set(std::string_view key, std::string_view value);
  /// Waits until `deadline` (nanoseconds of CLOCK_MONOTONIC). Nothing where the key is not set by then, or after
  /// `abort`.
  [[nodiscard]] std::optional<std::string> get(std::string_view key, std::int64_t deadline);

  /// Tells every process to end.
  void abort() noexcept;
  [[nodiscard]] bool aborted() const noexcept;

 private:
  struct Shared;

  [[nodiscard]] std::optional<std::string> find(std::string_view key) const;

  int descriptor_;
  Shared* shared_;
};

/// What a plugin did wrong.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws Failure.
inline void require(bool holds, const std::string& what) {
  if (!holds) {
    throw Failure(what);
  }
}

/// The error that `act` fails with. Throws Failure where it does not fail.
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

/// What a rank reports that fails only because another did.
constexpr const char* other_failed = "ended because another rank had failed";

/// That many seconds from now, in nanoseconds of CLOCK_MONOTONIC.
[[nodiscard]] std::int64_t after(double seconds);

/// Longer than anything here may take.
constexpr double timeout_s = 20;

/// This process as one of those that run the cases together, for any kind of plugin.
class Peer {
 public:
  Peer(Store& store, std::uint32_t rank) : store_(store), rank_(rank) {}

  [[nodiscard]] std::uint32_t rank() const noexcept { return rank_; }

  /// A barrier of the ranks below `n`. Each barrier has its own name.
  void meet(const std::string& place, std::uint32_t n);
  /// Sets a value under this name, for the other ranks to read.
  void tell(const std::string& name, const std::string& value);
  [[nodiscard]] std::string hear(const std::string& name, std::uint32_t from);

  /// Says what the case leaves out, and why. A note that is there already is not repeated.
  void note(std::string text);
  /// The notes since the last call.
  [[nodiscard]] std::vector<std::string> take_notes() { return std::exchange(notes_, {}); }

 protected:
  [[nodiscard]] Store& store() const noexcept { return store_; }

 private:
  Store& store_;
  std::uint32_t rank_;
  std::vector<std::string> notes_;
};

}  // namespace shardrun::conformance
