#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/metrics/appended_file.h"
#include "core/metrics/jsonl.h"

namespace shardrun::metrics {

/// The file metrics.csv: the lines of metrics.jsonl with a column for each field, after a line with the fields' names
/// (RFC 4180). A cell is empty where the line has no such field, or where its number is not finite.
class CsvWriter {
 public:
  /// Calls rewrite(). `lines`: metrics.jsonl. `columns` outlives this object.
  CsvWriter(std::filesystem::path path, std::filesystem::path lines, std::span<const std::string_view> columns);

  /// Appends a line. Throws Error{io}, as AppendedFile does.
  void write(std::span<const JsonField> fields);

  /// Replaces the file by what metrics.jsonl has. Throws Error{io}.
  void rewrite();

 private:
  std::filesystem::path path_;
  std::filesystem::path lines_;
  std::span<const std::string_view> columns_;
  std::optional<AppendedFile> file_;
  std::string line_;
};

}  // namespace shardrun::metrics
