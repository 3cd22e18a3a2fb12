#pragma once

#include <shardrun/engine.h>

#include <functional>
#include <optional>
#include <string_view>

#include "core/base/error.h"
#include "plugins/loader/engine.h"

namespace shardrun::plugins {

/// An array that a plugin gave, checked. Throws Error{plugin}.
[[nodiscard]] ArrayView array_from(const sr_array* given, std::string_view what);

/// In its C form, which points into `array`.
[[nodiscard]] sr_array raw_array(const ArrayView& array);

/// A plugin's maker of results.
[[nodiscard]] MakeArray maker_from(const sr_array_maker* given, std::string_view what);

/// The host's side of sr_ranks. It keeps the first error, so an engine cannot ignore it.
class EngineInstance::Table {
 public:
  explicit Table(EngineRanks& ranks);
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  [[nodiscard]] const sr_ranks& table() const noexcept { return table_; }
  [[nodiscard]] const std::optional<Error>& failure() const noexcept { return failure_; }

 private:
  /// Runs a function of the table. Returns SR_OK, or the error's status.
  template <class Act>
  static std::int32_t run(void* self, sr_error* error, std::string_view function, Act act) noexcept;

  EngineRanks& ranks_;
  sr_ranks table_{};
  std::optional<Error> failure_;
};

}  // namespace shardrun::plugins
