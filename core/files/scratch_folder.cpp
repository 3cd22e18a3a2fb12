#include "core/files/scratch_folder.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/base/error.h"

namespace shardrun::files {

ScratchFolder::ScratchFolder(std::string_view purpose) {
  std::error_code failed;
  const std::filesystem::path above = std::filesystem::temp_directory_path(failed);
  std::string name = (above / fmt::format("shardrun-{}-XXXXXX", purpose)).string();
  if (failed || mkdtemp(name.data()) == nullptr) {
    const char* const given = std::getenv("TMPDIR");
    throw Error(ErrorCode::usage,
                fmt::format("no folder for temporary files can be made in '{}': {}: let TMPDIR name a folder that may "
                            "be written to",
                            given != nullptr ? given : "/tmp", failed ? failed.message() : std::strerror(errno)));
  }
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace shardrun::files
