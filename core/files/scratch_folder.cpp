#include "core/files/scratch_folder.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "core/base/error.h"

namespace shardrun::files {

ScratchFolder::ScratchFolder(std::string_view name, std::string_view what) {
  std::error_code failed;
  const std::filesystem::path above = std::filesystem::temp_directory_path(failed);
  std::string made = (above / fmt::format("{}-XXXXXX", name)).string();
  if (failed || ::mkdtemp(made.data()) == nullptr) {
    const char* const given = std::getenv("TMPDIR");
    throw Error(ErrorCode::usage,
                fmt::format("no folder for {} can be made in '{}': {}: let TMPDIR name a folder that may be written to",
                            what, given != nullptr ? given : "/tmp", failed ? failed.message() : std::strerror(errno)));
  }
  path_ = made;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace shardrun::files
