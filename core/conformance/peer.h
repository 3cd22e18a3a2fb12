#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/conformance/store.h"

namespace shardrun::conformance {

/// What a plugin did wrong.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

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
