#include "core/checkpoint/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/files/atomic_file.h"
#include "core/files/descriptor.h"
#include "core/files/folder.h"

namespace shardrun::checkpoint {
namespace {

/// The indices of a source's tensors that one file gets.
using Shard = std::vector<std::size_t>;

TensorInfo exported(const TensorInfo& stored, std::optional<DType> type) {
  TensorInfo info = stored;
  info.dtype = type && is_real(stored.dtype) ? *type : stored.dtype;
  return info;
}

std::uint64_t bytes_of(const TensorInfo& info) { return tensor_bytes(info).value(); }

std::vector<Shard> shards_of(const TensorSource& source, const ExportSettings& settings) {
  std::vector<Shard> shards(1);
  std::uint64_t filled = 0;
  for (std::size_t i = 0; i < source.tensors.size(); ++i) {
    const std::uint64_t bytes = bytes_of(exported(source.tensors[i], settings.type));
    if (!shards.back().empty() && filled + bytes > settings.max_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(i);
    filled += bytes;
  }
  return shards;
}

void write_shard(const TensorSource& source, const Shard& shard, std::optional<DType> type,
                 const std::filesystem::path& path, Exported& result) {
  std::vector<TensorInfo> infos;
  for (const std::size_t tensor : shard) {
    infos.push_back(exported(source.tensors[tensor], type));
    result.bytes += bytes_of(infos.back());
  }
  TensorFileWriter writer(path, lay_out(infos, source.metadata));
  for (std::size_t i = 0; i < shard.size(); ++i) {
    std::uint64_t offset = 0;
    stream_as(source, shard[i], infos[i].dtype, [&](std::span<const std::byte> bytes) {
      writer.write(infos[i].name, offset, bytes);
      offset += bytes.size();
    });
  }
  writer.commit();
  result.tensors += static_cast<std::int64_t>(shard.size());
  result.files.push_back(path);
}

/// Throws Error{usage} if the folder is a checkpoint, because an export could replace one of the checkpoint's files.
void require_no_checkpoint(const std::filesystem::path& folder) {
  std::error_code none;
  if (std::filesystem::exists(folder / manifest_name, none)) {
    throw Error(ErrorCode::usage,
                fmt::format("cannot write into '{}': it is a checkpoint, and would be damaged: choose "
                            "another folder",
                            folder.native()));
  }
}

/// Whether the name has the form that shard_name() makes.
bool is_shard(const std::string& name) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::string form = name;
  std::ranges::replace_if(form, is_digit, '0');
  constexpr std::string_view ending = "-00000-of-00000.safetensors";
  return form.starts_with("model") && form.ends_with(ending);
}

std::string shard_name(const std::string& stem, std::size_t number, std::size_t shards) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, number + 1, shards);
}

/// A stem for the names of new files: "model", or "model.2" and so on if the folder already has files of that stem.
std::string free_stem(const std::filesystem::path& folder, std::size_t shards) {
  const auto is_taken = [&](const std::string& stem) {
    for (std::size_t i = 0; i < shards; ++i) {
      if (std::filesystem::exists(std::filesystem::symlink_status(folder / shard_name(stem, i, shards)))) {
        return true;
      }
    }
    return false;
  };
  std::string stem = "model";
  for (int k = 2; is_taken(stem); ++k) {
    stem = fmt::format("model.{}", k);
  }
  return stem;
}

void write_index(const TensorSource& source, const std::vector<Shard>& shards, const std::filesystem::path& folder,
                 Exported& result) {
  boost::json::object map;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const std::size_t tensor : shards[i]) {
      map[source.tensors[tensor].name] = result.files[i].filename().native();
    }
  }
  const boost::json::object index{{"metadata", {{"total_size", result.bytes}}}, {"weight_map", std::move(map)}};
  result.files.push_back(folder / index_name);
  files::write_file_atomically(result.files.back(), boost::json::serialize(index) + "\n");
}

void remove_file(const std::filesystem::path& path) {
  std::error_code failed;
  std::filesystem::remove(path, failed);
  if (failed) {
    throw files::system_error("remove", path, failed.value());
  }
}

/// The files that exports write to this folder. The first two need not exist. Readers prefer the first to the second.
std::vector<std::filesystem::path> exported_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files = {folder / one_file_name, folder / index_name};
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (is_shard(entry.path().filename().native())) {
      files.push_back(entry.path());
    }
  }
  return files;
}

void remove_others(const std::filesystem::path& folder, const Exported& result) {
  for (const std::filesystem::path& path : exported_files(folder)) {
    if (std::ranges::find(result.files, path) == result.files.end()) {
      remove_file(path);
    }
  }
}

}  // namespace

Exported export_file(const TensorSource& source, const std::filesystem::path& path, std::optional<DType> type) {
  require_no_checkpoint(path.parent_path());
  files::require_not_read(path, source.files);
  Exported result;
  write_shard(source, shards_of(source, {.max_bytes = UINT64_MAX}).front(), type, path, result);
  return result;
}

Exported export_folder(const TensorSource& source, const std::filesystem::path& folder,
                       const ExportSettings& settings) {
  require_no_checkpoint(folder);
  files::create_folders(folder);
  for (const std::filesystem::path& path : exported_files(folder)) {
    files::require_not_read(path, source.files);
  }
  const std::vector<Shard> shards = shards_of(source, settings);
  Exported result;
  if (shards.size() == 1) {
    write_shard(source, shards.front(), settings.type, folder / one_file_name, result);
  } else {
    const std::string stem = free_stem(folder, shards.size());
    for (std::size_t i = 0; i < shards.size(); ++i) {
      write_shard(source, shards[i], settings.type, folder / shard_name(stem, i, shards.size()), result);
    }
    write_index(source, shards, folder, result);
  }
  remove_others(folder, result);
  return result;
}

}  // namespace shardrun::checkpoint
