#pragma once

#include <shardrun/engine.h>

#include <functional>
#include <optional>
#include <string_view>

#include "core/base/error.h"
#include "plugins/loader/engine.h"

namespace shardrun::plugins {

inline constexpr std::uint32_t most_array_dimensions = 7;

/// Checks an array that a plugin gave, and converts it. Throws Error{plugin}.
[[nodiscard]] ArrayView array_from(const sr_array* given, std::string_view what);

/// The C form of an array, which points into `array`.
[[nodiscard]] sr_array raw_array(const ArrayView& array);

/// Converts a plugin's maker of results to a function.
[[nodiscard]] MakeArray maker_from(const sr_array_maker* given, std::string_view what);

/// The host's side of sr_ranks. It keeps the first error, so an engine cannot ignore it.
class EngineInstance::Table {
 public:
  explicit Table(EngineRanks& ranks);
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  [[nodiscard]] const sr_ranks& table() const noexcept { return table_; }
  [[nodiscard]] const std::optional<Error>& failure() const noexcept { return failure_; }

  /// The table of records, whose errors are kept, too. Valid as long as this object and `records`.
  [[nodiscard]] sr_records records_table(EngineRecords& records);

 private:
  /// Runs a function of a table. `act` takes this object. Returns SR_OK, or the error's status.
  template <class Act>
  static std::int32_t run_any(void* self, sr_error* error, std::string_view function, Act act) noexcept;
  /// The same for an `act` that takes the ranks.
  template <class Act>
  static std::int32_t run(void* self, sr_error* error, std::string_view function, Act act) noexcept {
    return run_any(self, error, function, [&](Table& table) { act(table.ranks_); });
  }

  EngineRanks& ranks_;
  sr_ranks table_{};
  std::optional<Error> failure_;
  EngineRecords* records_ = nullptr;
};

}  // namespace shardrun::plugins
