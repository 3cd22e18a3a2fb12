#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "core/metrics/appended_file.h"
#include "core/metrics/json_text.h"

namespace shardrun::metrics {

struct JsonField {
  std::string_view name;
  std::variant<std::int64_t, double, std::string_view, std::span<const double>, JsonText> value;
};

/// What metrics.jsonl records of a training step.
struct StepRecord {
  std::int64_t step = 0;
  double loss = 0;
  std::optional<double> val_loss;  ///< nothing if it was not measured
  double grad_norm = 0;
  double lr = 0;
  double tokens_per_s = 0;
  double step_s = 0;
  double comm_s = 0;  ///< the sum of the next two
  double comm_exposed_s = 0;
  double comm_hidden_s = 0;
  double bandwidth = 0;               ///< bytes that the rank sent per second of comm_s
  std::optional<double> flops_per_s;  ///< of the rank; nothing if unknown
  std::optional<double> utilisation;  ///< flops_per_s divided by [cluster] flops; nothing without these
};

/// The names of all fields that a line of metrics.jsonl may have, in order: of a step of training, and of iterating.
inline constexpr std::array<std::string_view, 13> training_fields = {
    "step",   "loss",           "val_loss",      "grad_norm", "lr",          "tokens_per_s", "step_s",
    "comm_s", "comm_exposed_s", "comm_hidden_s", "bandwidth", "flops_per_s", "utilisation"};
inline constexpr std::array<std::string_view, 5> iterating_fields = {"step", "step_s", "bandwidth", "flops_per_s",
                                                                     "utilisation"};

/// The fields of a step's line that have a value, in order; they lie in `storage`.
[[nodiscard]] std::span<const JsonField> fields_of(const StepRecord& record,
                                                   std::array<JsonField, training_fields.size()>& storage);

/// Appends a JSON object and the end of the line.
void append_line(std::string& text, std::span<const JsonField> fields);

/// Appends records to a file, one JSON object per line. Allocates nothing once the longest line has been written.
class JsonlWriter {
 public:
  /// Creates the file, or continues at its end. Throws Error{io}.
  explicit JsonlWriter(std::filesystem::path path) : file_(std::move(path)) {}

  /// Writes fields in the given order; doubles as the shortest text that reads back the same, NaN and infinities as
  /// null. Throws Error{io}; then a partly written line is removed.
  void write(std::span<const JsonField> fields);
  void write(const StepRecord& record);

  /// Adds the validation loss after a step that has been recorded: to the step's line if it is the last in the file,
  /// otherwise as a line of its own. Throws Error{io}.
  void add_validation(std::int64_t step, double val_loss);

  /// The last line that was written.
  [[nodiscard]] std::string_view line() const noexcept { return line_; }

 private:
  AppendedFile file_;
  std::string line_;
};

}  // namespace shardrun::metrics
