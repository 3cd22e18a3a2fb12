#include "core/job/raw.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string_view>
#include <system_error>

#include "core/base/error.h"
#include "core/base/text.h"

namespace shardrun::job {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, std::string_view why) {
  throw Error(ErrorCode::job, fmt::format("{}: {}", escaped(path.string()), why));
}

std::string reason(int error) { return std::generic_category().message(error); }

class File {
 public:
  /// Opens the file without blocking, because opening a pipe that has no writer would wait. Throws Error{job}.
  explicit File(const std::filesystem::path& path)
      : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (descriptor_ < 0) {
      refuse(path, fmt::format("the job file cannot be opened: {}; check its name and permissions", reason(errno)));
    }
  }
  ~File() { ::close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }

 private:
  int descriptor_;
};

void check_kind_and_size(const std::filesystem::path& path, const File& file) {
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0) {
    refuse(path, fmt::format("the job file cannot be examined: {}", reason(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    refuse(path, fmt::format("is {}, not a regular file; name a job file",
                             S_ISDIR(status.st_mode) ? "a folder" : "a device, pipe or socket"));
  }
  if (static_cast<std::uintmax_t>(status.st_size) > max_file_bytes) {
    refuse(path,
           fmt::format("has {} bytes; a job file has at most {}. Is it a data file?", status.st_size, max_file_bytes));
  }
}

}  // namespace

std::string read_source(const std::filesystem::path& path) {
  const File file(path);
  check_kind_and_size(path, file);
  std::string text(max_file_bytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::read(file.descriptor(), text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      refuse(path, fmt::format("the job file cannot be read: {}", reason(errno)));
    }
    if (count == 0) {
      break;
    }
    size += static_cast<std::size_t>(count);
  }
  text.resize(size);
  return text;
}

}  // namespace shardrun::job
