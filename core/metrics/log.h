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

/// A time in UTC: "2024-05-17T09:03:01.042Z".
[[nodiscard]] std::string utc_text(WallTime time);

/// A rank's log. Appends lines to a file, each after its time in UTC, and passes them on.
class Log {
 public:
  /// Creates the file and its parent folders. `tee` gets every line, without the time; it may be empty.
  /// Throws Error{io}.
  explicit Log(std::filesystem::path path, std::function<void(std::string_view)> tee = {},
               std::function<WallTime()> now = std::chrono::system_clock::now);

  /// Writes each line of `text` at once, so that lines of several threads and processes never mix. A failing file does
  /// not fail the run: `tee` is told once, and take_failure() says why. Any thread may call it. `tee` is called by one
  /// thread at a time and must not call this.
  void write(std::string_view text);

  /// In the first call after a failure, why the file could not be written. Otherwise "".
  [[nodiscard]] std::string take_failure();

 private:
  void append(std::string_view line);

  std::filesystem::path path_;
  files::FileDescriptor file_;
  std::function<void(std::string_view)> tee_;
  std::function<WallTime()> now_;
  std::mutex mutex_;
  bool failed_ = false;
  std::string failure_;  ///< set until it is taken
};

}  // namespace shardrun::metrics
