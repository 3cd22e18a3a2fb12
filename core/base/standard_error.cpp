#include "core/base/standard_error.h"

#include <unistd.h>

#include <cerrno>
#include <exception>
#include <string>

#include "core/base/printable.h"

namespace shardrun {

namespace {

void write_all(std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno != EINTR) {
      return;
    }
    text.remove_prefix(written < 0 ? 0 : static_cast<std::size_t>(written));
  }
}

}  // namespace

void write_to_standard_error(std::string_view text) noexcept {
  try {
    write_all(printable_lines(text));
  } catch (const std::exception&) {
    write_all("shardrun: out of memory\n");
  }
}

}  // namespace shardrun
