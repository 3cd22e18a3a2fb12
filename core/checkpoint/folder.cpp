#include "core/checkpoint/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/files/descriptor.h"
#include "core/files/folder.h"
#include "core/files/sequential_file.h"
#include "core/files/trust.h"

namespace shardrun::checkpoint {
namespace {

constexpr std::string_view prefix = "step-";
constexpr std::string_view aside_suffix = ".damaged";

std::filesystem::path hidden(const std::filesystem::path& root, std::int64_t step, std::string_view suffix) {
  return root / fmt::format(".{}.{}", folder_name(step), suffix);
}

/// Whether a folder's name says that its checkpoint was being written or removed.
bool is_unfinished(std::string_view name) {
  for (const std::string_view suffix : {".tmp", ".removed"}) {
    if (name.starts_with('.') && name.ends_with(suffix)) {
      return step_of_folder(name.substr(1, name.size() - 1 - suffix.size())).has_value();
    }
  }
  return false;
}

void remove_folder(const std::filesystem::path& path) {
  std::error_code failed;
  std::filesystem::remove_all(path, failed);
  if (failed) {
    throw files::system_error("remove", path, failed.value());
  }
}

/// Swaps the names of two folders. Returns false on failure, as on file systems that cannot do it.
bool exchange_names(const std::filesystem::path& from, const std::filesystem::path& to) {
  return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0;
}

void rename_folder(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw files::system_error(fmt::format("rename '{}' to", files::shown(from).native()), to, errno);
  }
}

/// Removes a checkpoint. Renames it first, so that a partly removed checkpoint never has a complete one's name, even
/// after a power failure.
void remove_checkpoint(const std::filesystem::path& root, const Listed& listed) {
  const std::filesystem::path removed = hidden(root, listed.step, "removed");
  remove_folder(removed);
  rename_folder(listed.path, removed);
  files::sync_folder(root);
  remove_folder(removed);
}

void require_files(const std::filesystem::path& folder, const Manifest& manifest) {
  for (const StoredFile& file : manifest.files) {
    struct stat status = {};
    const std::filesystem::path path = folder / file.name;
    if (::lstat(path.c_str(), &status) != 0) {
      throw Error(ErrorCode::io,
                  fmt::format("'{}' is not there for the first rank: [checkpoint] folder must be one that all machines "
                              "of the job share",
                              files::shown(path).native()));
    }
    if (static_cast<std::uint64_t>(status.st_size) != file.bytes) {
      throw Error(ErrorCode::io, fmt::format("'{}' has {} bytes, and its rank wrote {}", files::shown(path).native(),
                                             status.st_size, file.bytes));
    }
  }
}

}  // namespace

std::optional<std::int64_t> step_of_folder(std::string_view name) {
  std::int64_t step = -1;
  if (name.starts_with(prefix)) {
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  }
  return step >= 0 && name == folder_name(step) ? std::optional(step) : std::nullopt;
}

std::string folder_name(std::int64_t step) { return fmt::format("{}{:06}", prefix, step); }

std::vector<Listed> list_checkpoints(const std::filesystem::path& root) {
  std::vector<Listed> listed;
  std::error_code failed;
  for (auto entry = std::filesystem::directory_iterator(root, failed);
       !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    if (const auto step = step_of_folder(entry->path().filename().native())) {
      std::error_code none;
      listed.push_back({entry->path(), *step, std::filesystem::exists(entry->path() / manifest_name, none)});
    }
  }
  std::ranges::sort(listed, {}, &Listed::step);
  return listed;
}

std::vector<Listed> checkpoints_at(const std::filesystem::path& given) {
  std::error_code none;
  const std::filesystem::path named = (given / "").lexically_normal().parent_path();
  const std::optional<std::int64_t> step = step_of_folder(named.filename().native());
  const bool has_manifest = std::filesystem::exists(given / manifest_name, none);
  if (has_manifest || (step && std::filesystem::is_directory(given, none))) {
    return {{given.has_filename() ? given : given.parent_path(), step.value_or(-1), has_manifest}};
  }
  std::vector<Listed> listed = list_checkpoints(given);
  return listed.empty() ? list_checkpoints(given / "checkpoints") : listed;
}

files::Folder lock_checkpoints(const std::filesystem::path& root) {
  files::create_folders(root, "the folder of checkpoints", files::unwritable);
  files::Folder opened(root);
  files::require_no_links_of_others(opened.root());
  if (::flock(opened.descriptor().get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw Error(ErrorCode::io,
                fmt::format("another run writes to the checkpoints in '{}' now: wait for its end, or choose "
                            "another [checkpoint] folder",
                            files::shown(root).native()));
  }
  return opened;
}

std::filesystem::path unfinished_path(const std::filesystem::path& root, std::int64_t step) {
  return hidden(root, step, "tmp");
}

std::filesystem::path begin_checkpoint(const std::filesystem::path& root, std::int64_t step) {
  std::filesystem::path folder = unfinished_path(root, step);
  files::create_folders(root, "the folder of checkpoints");
  remove_unfinished_checkpoints(root);
  if (::mkdir(folder.c_str(), 0777) != 0) {
    throw files::system_error("make the folder", folder, errno);
  }
  return folder;
}

void require_none_unfinished(const std::filesystem::path& root, std::span<const std::filesystem::path> files) {
  for (const std::filesystem::path& file : files) {
    std::error_code none;
    const std::filesystem::path folder = std::filesystem::canonical(file, none).parent_path();
    if (is_unfinished(folder.filename().native()) && std::filesystem::equivalent(folder.parent_path(), root, none)) {
      throw Error(ErrorCode::usage,
                  fmt::format("'{}' is read, and lies in a checkpoint that was never complete, which writing to '{}' "
                              "would remove: move the file, or choose another folder",
                              file.native(), files::shown(root).native()));
    }
  }
}

void commit_checkpoint(const std::filesystem::path& root, const Manifest& manifest) {
  const std::filesystem::path folder = unfinished_path(root, manifest.step);
  require_files(folder, manifest);
  const std::string text = to_json(manifest);
  files::SequentialFile file(folder / manifest_name, text.size());
  file.write(std::as_bytes(std::span(text)));
  static_cast<void>(file.finish());
  files::sync_folder(folder);
  const std::filesystem::path named = root / folder_name(manifest.step);
  std::error_code none;
  if (!std::filesystem::exists(std::filesystem::symlink_status(named, none))) {
    rename_folder(folder, named);
  } else if (!exchange_names(folder, named)) {
    rename_folder(named, hidden(root, manifest.step, "removed"));
    rename_folder(folder, named);
  }
  files::sync_folder(root);
  remove_unfinished_checkpoints(root);  // removes the replaced checkpoint, which now has the unfinished name
}

void remove_checkpoints(const std::filesystem::path& root) {
  for (const Listed& each : list_checkpoints(root)) {
    remove_checkpoint(root, each);
  }
  for (const std::filesystem::path& aside : checkpoints_set_aside(root)) {
    remove_folder(aside);
  }
}

void remove_old_checkpoints(const std::filesystem::path& root, const Keeping& keeping,
                            const std::function<bool(const std::filesystem::path&)>& is_whole) {
  if (keeping.newest == 0) {
    return;
  }
  std::vector<Listed> listed = list_checkpoints(root);
  std::erase_if(listed, [&](const Listed& each) { return !each.has_manifest || !is_whole(each.path); });
  if (std::cmp_less_equal(listed.size(), keeping.newest)) {
    return;
  }
  for (const Listed& old : std::span(listed).first(listed.size() - static_cast<std::size_t>(keeping.newest))) {
    if (keeping.every == 0 || old.step % keeping.every != 0) {
      remove_checkpoint(root, old);
    }
  }
}

std::filesystem::path set_aside(const std::filesystem::path& checkpoint) {
  std::error_code none;
  std::filesystem::path aside;
  for (int number = 1; aside.empty() || std::filesystem::exists(std::filesystem::symlink_status(aside, none));
       ++number) {
    aside = checkpoint;
    aside += number == 1 ? std::string(aside_suffix) : fmt::format("{}-{}", aside_suffix, number);
  }
  rename_folder(checkpoint, aside);
  files::sync_folder(aside.parent_path());
  return aside;
}

std::vector<std::filesystem::path> checkpoints_set_aside(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> aside;
  std::error_code failed;
  for (auto entry = std::filesystem::directory_iterator(root, failed);
       !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    const std::string name = entry->path().filename().native();
    const std::size_t dot = name.find('.');
    if (dot != std::string::npos && name.substr(dot).starts_with(aside_suffix) && step_of_folder(name.substr(0, dot))) {
      aside.push_back(entry->path());
    }
  }
  std::ranges::sort(aside);
  return aside;
}

void remove_unfinished_checkpoints(const std::filesystem::path& root) noexcept {
  std::error_code failed;
  for (auto entry = std::filesystem::directory_iterator(root, failed);
       !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    if (is_unfinished(entry->path().filename().native())) {
      std::error_code ignored;
      std::filesystem::remove_all(entry->path(), ignored);
    }
  }
}

}  // namespace shardrun::checkpoint
