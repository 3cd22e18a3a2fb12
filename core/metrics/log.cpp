#include "core/metrics/log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/files/folder.h"

namespace shardrun::metrics {
namespace {

files::FileDescriptor open_log(const std::filesystem::path& path) {
  if (path.has_parent_path()) {
    files::create_folders(path.parent_path());
  }
  files::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file.is_open()) {
    throw files::system_error("open the log", path, errno);
  }
  return file;
}

}  // namespace

std::string utc_text(WallTime time) {
  const auto whole = std::chrono::floor<std::chrono::seconds>(time);
  const auto milliseconds = std::chrono::floor<std::chrono::milliseconds>(time - whole).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(whole)),
                     milliseconds);
}

Log::Log(std::filesystem::path path, std::function<void(std::string_view)> tee, std::function<WallTime()> now)
    : path_(std::move(path)), file_(open_log(path_)), tee_(std::move(tee)), now_(std::move(now)) {}

void Log::write(std::string_view text) {
  const std::lock_guard lock(mutex_);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    append(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::string Log::take_failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, {});
}

void Log::append(std::string_view line) {
  if (tee_) {
    tee_(line);
  }
  if (failed_) {
    return;
  }
  const std::string stamped = fmt::format("{} {}\n", utc_text(now_()), printable(line));
  try {
    files::write_all(file_, std::as_bytes(std::span(stamped)), path_);
  } catch (const Error& error) {
    failed_ = true;
    failure_ = fmt::format("the log ends here: {}", error.message());
    if (tee_) {
      tee_(failure_);
    }
  }
}

}  // namespace shardrun::metrics
