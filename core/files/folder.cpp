#include "core/files/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

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
  constexpr std::string_view removed = " (deleted)";  // appended by the kernel
  if (folder.ends_with(removed)) {
    folder.erase(folder.size() - removed.size());
  }
  return failed ? path : std::filesystem::path(folder + text.substr(end));
}

std::string human_path(const std::filesystem::path& path) {
  const std::filesystem::path normal = shown(path).lexically_normal();
  std::error_code failed;
  const std::filesystem::path folder = std::filesystem::current_path(failed);
  const std::filesystem::path relative = normal.lexically_relative(folder);
  const bool is_shorter = !failed && !relative.empty() && relative.native().size() < normal.native().size();
  return (is_shorter ? relative : normal).string();
}

void sync_folder(const std::filesystem::path& folder) {
  const FileDescriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot sync a folder. They return EINVAL, which is ignored.
  if (!opened.is_open() || (::fsync(opened.get()) != 0 && errno != EINVAL)) {
    throw system_error("make durable the folder", folder, errno);
  }
}

void create_folders(const std::filesystem::path& path, std::string_view what, SystemError error) {
  std::error_code failed;
  std::vector<std::filesystem::path> missing;
  for (std::filesystem::path each = path; !each.empty() && !std::filesystem::exists(each, failed);
       each = each.parent_path()) {
    missing.push_back(each);
  }
  std::filesystem::create_directories(path, failed);
  if (failed) {
    throw error(fmt::format("create {}", what), path, failed.value());
  }
  for (const std::filesystem::path& created : missing) {
    const std::filesystem::path parent = created.has_parent_path() ? created.parent_path() : ".";
    if (::access(parent.c_str(), R_OK) == 0) {  // sync_folder() could not open a folder without read permission
      sync_folder(parent);
    }
  }
}

}  // namespace shardrun::files
