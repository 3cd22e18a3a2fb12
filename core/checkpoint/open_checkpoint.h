#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/manifest.h"
#include "core/files/descriptor.h"
#include "core/files/steady_file.h"

namespace shardrun::checkpoint {

/// A checkpoint that is open for reading. Its files are opened when they are read; a few stay open. One thread at a
/// time.
class OpenCheckpoint {
 public:
  /// Reads the manifest, and checks it, the folder's name if it has a step, and the files' sizes. `folder`: of the
  /// checkpoint. Throws Error{data} for files that are missing or damaged, and for links.
  explicit OpenCheckpoint(std::filesystem::path folder);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] const Manifest& manifest() const noexcept { return manifest_; }
  /// Identifies the checkpoint: all processes of a job must find the same.
  [[nodiscard]] const files::Hash& hash() const noexcept { return hash_; }

  /// Null if there is none of this name.
  [[nodiscard]] const StoredTensor* find(std::string_view name) const noexcept;

  /// Compares the bytes of a file with the manifest's hash, and its header with the manifest's pieces. Throws
  /// Error{data}.
  void check_file(std::size_t number) const;
  void check_all_files() const;
  /// Frees what only reading needs: the open files, which keep the space of removed files, and the manifest's tensors,
  /// which take hundreds of megabytes for a thousand ranks. Nothing may be read afterwards.
  void release() const noexcept;

  /// Copies a part of a tensor into `to`: its elements in the part's row-major order, in the type in which they are
  /// stored. May read bytes between the wanted ones, if that makes fewer reads. Throws Error{data} if an element of the
  /// part is in no piece or in several, Error{io} if a file has changed.
  void read(const StoredTensor& tensor, const mesh::Box& part, std::span<std::byte> to) const;

 private:
  [[nodiscard]] const files::SteadyFile& file(std::size_t number) const;

  std::filesystem::path path_;
  mutable Manifest manifest_;
  files::Hash hash_;
  mutable std::map<std::size_t, files::SteadyFile> open_;  ///< by number of the file
};

/// Whether OpenCheckpoint opens it: its manifest is good, and all files are there with their sizes. Reads no tensor.
[[nodiscard]] bool can_be_opened(const std::filesystem::path& folder);

// The parts of opening and checking a checkpoint. All throw Error{data}.

/// Opens a file of a checkpoint. It must be a regular file, and no link.
[[nodiscard]] files::SteadyFile open_stored(const std::filesystem::path& path);
/// The same, and it must have the manifest's size.
[[nodiscard]] files::SteadyFile open_stored(const std::filesystem::path& folder, const StoredFile& stored);
/// The text of a checkpoint's manifest.
[[nodiscard]] std::string manifest_text(const std::filesystem::path& folder);
[[nodiscard]] Manifest read_manifest(const std::filesystem::path& folder);
/// Reads all bytes.
void check_hash(const files::SteadyFile& file, const files::Hash& expected);
/// Its safetensors header has the manifest's pieces of this file, and no others.
void check_pieces(const files::SteadyFile& file, const Manifest& manifest, std::size_t index);

/// The checkpoint that a path names: the checkpoint in that folder, or the newest whole one in a folder of checkpoints
/// or in a run's folder. Throws Error{data} if there is none.
[[nodiscard]] std::filesystem::path find_checkpoint(const std::filesystem::path& given);

}  // namespace shardrun::checkpoint
