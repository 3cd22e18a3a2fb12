#include "core/metrics/appended_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <utility>

#include "core/base/error.h"

namespace shardrun::metrics {

AppendedFile::AppendedFile(std::filesystem::path path)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (!file_.is_open()) {
    throw files::system_error("open", path_, errno);
  }
}

void AppendedFile::append(std::string_view record) {
  struct stat before = {};
  const bool regular = ::fstat(file_.get(), &before) == 0 && S_ISREG(before.st_mode);
  try {
    files::write_all(file_, std::as_bytes(std::span(record)), path_);
  } catch (const Error&) {
    if (regular && ::ftruncate(file_.get(), before.st_size) != 0) {
      // Ignored: the exception that is being handled already says what is wrong with this file.
    }
    throw;
  }
}

}  // namespace shardrun::metrics
