#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "core/files/descriptor.h"

namespace shardrun::metrics {

struct JsonField {
  std::string_view name;
  std::variant<std::int64_t, double, std::string_view> value;
};

/// The line of a training step in metrics.jsonl.
struct StepRecord {
  std::int64_t step = 0;
  double loss = 0;
  std::optional<double> val_loss;  ///< absent from the line if it was not measured
  double grad_norm = 0;
  double lr = 0;
  double tokens_per_s = 0;
  double step_s = 0;
  double comm_s = 0;  ///< the sum of the next two
  double comm_exposed_s = 0;
  double comm_hidden_s = 0;
  double bandwidth = 0;               ///< bytes that the rank sent in a second of comm_s
  std::optional<double> flops_per_s;  ///< of the rank; absent if unknown
  std::optional<double> utilisation;  ///< flops_per_s over [cluster] flops; absent without these
};

/// Appends records to a file, one JSON object a line. Each line is one write: a reader never sees a part of one, and
/// nothing is lost when the process dies. Allocates nothing once the longest line has been written.
class JsonlWriter {
 public:
  /// Creates the file, or continues at its end. Throws Error{io}.
  explicit JsonlWriter(std::filesystem::path path);

  /// Writes fields in the order given; doubles as the shortest text that reads back the same, NaN and infinities as
  /// null. Throws Error{io}; a line that was written in part is removed.
  void write(std::span<const JsonField> fields);
  void write(const StepRecord& record);

  /// Sets the validation loss after a step that was recorded before: in its line, if that is the file's last, otherwise
  /// in a line of its own. Throws Error{io}.
  void add_validation(std::int64_t step, double val_loss);

 private:
  std::filesystem::path path_;
  files::FileDescriptor file_;
  std::string line_;
};

}  // namespace shardrun::metrics
