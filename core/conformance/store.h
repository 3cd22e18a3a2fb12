#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

  /// Throws Error{internal} where the key is already set or the store is full.
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

}  // namespace shardrun::conformance
