#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "core/files/descriptor.h"

namespace shardrun::metrics {

using WallTime = std::chrono::system_clock::time_point;

/// "2024-05-17T09:03:01.042Z"
[[nodiscard]] std::string utc_text(WallTime time);

/// A rank's log: lines with the time (UTC) before them, appended to a file and passed on.
class Log {
 public:
  /// Creates the file and the folders above it. `tee` is given every line, without the time; it may be empty.
  /// Throws Error{io}.
  explicit Log(std::filesystem::path path, std::function<void(std::string_view)> tee = {},
               std::function<WallTime()> now = std::chrono::system_clock::now);

  /// Writes each line of `text` as one write, so that lines of several threads and processes never mix.
  /// A file that cannot be written any more is told to `tee` once and is no error: a log is not worth a run.
  /// take_failure() says why it ends.
  /// Any thread; `tee` is called by one at a time and must not write here.
  void write(std::string_view text);

  /// Why the file could not be written, the first time that this is asked since; else "".
  [[nodiscard]] std::string take_failure();

 private:
  void append(std::string_view line);

  std::filesystem::path path_;
  files::FileDescriptor file_;
  std::function<void(std::string_view)> tee_;
  std::function<WallTime()> now_;
  std::mutex mutex_;
  bool failed_ = false;
  std::string failure_;  ///< not taken yet
};

}  // namespace shardrun::metrics
