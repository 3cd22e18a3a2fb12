#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::job {

inline constexpr std::size_t max_file_bytes = std::size_t{1} << 20U;
inline constexpr std::size_t max_line_bytes = std::size_t{1} << 16U;

/// One `key = value` that has not been interpreted yet.
struct RawSetting {
  std::string key;
  std::string value;
  std::string where;  ///< "job.ini:12" or "--set train.steps"
  bool from_override = false;
  std::filesystem::path folder{};  ///< absolute: the folder to which a relative path in the value refers
};

struct RawSection {
  std::string name;
  std::string where;  ///< place of its header, or of the override that created it
  std::vector<RawSetting> settings;

  [[nodiscard]] const RawSetting* find(std::string_view key) const noexcept;
};

/// A job file with its includes and overrides. Only the syntax has been checked: sections are unique, and keys are
/// unique within a section.
struct RawJob {
  std::string file;                          ///< the path as given, for messages
  std::string name;                          ///< the file's stem
  std::filesystem::path job_folder;          ///< absolute: the folder to which relative paths in the file refer
  std::filesystem::path working_folder;      ///< absolute: the folder to which relative paths in overrides refer
  std::vector<std::filesystem::path> files;  ///< absolute: the job file, then the files that it includes
  std::vector<RawSection> sections;

  [[nodiscard]] const RawSection* find(std::string_view section) const noexcept;
};

/// Reads a job file and the files that it includes: regular files of at most `max_file_bytes`, in UTF-8 with or without
/// a byte order mark, with lines ended by LF or CRLF. `overrides`: arguments of --set, `section.key=value`. Throws
/// Error{job} for the files, and Error{usage} for an override that has another form or is given twice.
[[nodiscard]] RawJob read_job_file(const std::filesystem::path& path, std::span<const std::string> overrides = {});

/// read_job_file() for text in memory. `file` names it in messages and need not exist.
[[nodiscard]] RawJob read_job_text(std::string_view text, const std::filesystem::path& file,
                                   std::span<const std::string> overrides = {});

/// The text of a job file: a regular file of at most `max_file_bytes` (one byte more if it grows meanwhile). Throws
/// Error{job}, whose message begins with the path.
[[nodiscard]] std::string read_source(const std::filesystem::path& path);

}  // namespace shardrun::job
