#pragma once

#include <cstdint>
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

/// A new file of events for TensorBoard. Each step is one record, which is written at once. TensorBoard drops what
/// older files of the folder say of this file's first step and later ones: an earlier attempt did those steps, and this
/// attempt does them again.
class EventFile {
 public:
  /// `folder` exists. `done`: the steps done before those of this file. `job`: the text of the job. Throws Error{io}.
  EventFile(const std::filesystem::path& folder, std::int64_t done, std::string_view job);

  /// Writes the numbers of a step as scalars, each under the name that tag_of() gives its field. Throws Error{io}, as
  /// AppendedFile does.
  void write(std::span<const JsonField> fields);

 private:
  void append(std::string_view event);

  AppendedFile file_;
  std::string record_;
};

/// The name by which TensorBoard shows a field of metrics.jsonl; "" if it does not.
[[nodiscard]] std::string_view tag_of(std::string_view field) noexcept;

/// CRC-32C (Castagnoli).
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes) noexcept;

}  // namespace shardrun::metrics
