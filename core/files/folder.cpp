#include "core/files/folder.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>

namespace shardrun::files {
namespace {

constexpr std::string_view descriptors = "/proc/self/fd/";

}  // namespace

Folder::Folder(const std::filesystem::path& path)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (!descriptor_.is_open()) {
    throw system_error("open the folder", path, errno);
  }
  root_ = fmt::format("{}{}", descriptors, descriptor_.get());
}

std::filesystem::path shown(const std::filesystem::path& path) {
  const std::string& text = path.native();
  if (!text.starts_with(descriptors)) {
    return path;
  }
  const std::size_t end = std::min(text.find('/', descriptors.size()), text.size());
  std::error_code failed;
  std::string folder = std::filesystem::read_symlink(text.substr(0, end), failed).string();
  constexpr std::string_view removed = " (deleted)";  // the kernel's word
  if (folder.ends_with(removed)) {
    folder.erase(folder.size() - removed.size());
  }
  return failed ? path : std::filesystem::path(folder + text.substr(end));
}

void create_folders(const std::filesystem::path& path, std::string_view what) {
  std::error_code failed;
  std::filesystem::create_directories(path, failed);
  if (failed) {
    throw system_error(fmt::format("create {}", what), path, failed.value());
  }
}

}  // namespace shardrun::files
