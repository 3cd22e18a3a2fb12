#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "plugins/conformance/store.h"

namespace shardrun::conformance {

/// What a plugin did wrong.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Nanoseconds of CLOCK_MONOTONIC from now.
[[nodiscard]] std::int64_t after(double seconds);

/// Longer than anything here may take.
constexpr double patience_s = 20;

/// This process as one of those that go through the cases together, whatever they check.
class Peer {
 public:
  Peer(Store& store, std::uint32_t rank) : store_(store), rank_(rank) {}

  [[nodiscard]] std::uint32_t rank() const noexcept { return rank_; }

  /// Waits for the ranks below `n`. Each place has a name of its own.
  void meet(const std::string& place, std::uint32_t n);
  /// The value that a rank has told the others under this name.
  void tell(const std::string& name, const std::string& value);
  [[nodiscard]] std::string hear(const std::string& name, std::uint32_t from);

 protected:
  [[nodiscard]] Store& store() const noexcept { return store_; }

 private:
  Store& store_;
  std::uint32_t rank_;
};

}  // namespace shardrun::conformance
