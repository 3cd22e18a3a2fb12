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

/// A checkpoint that is open for reading. Its files are opened when they are read; a few stay open. Only one thread at
/// a time may use it.
class OpenCheckpoint {
 public:
  /// Reads the manifest, and checks it, the step in the folder's name (if there is one), and the files' sizes.
  /// `folder`: that of the checkpoint. Throws Error{data} if files are missing or damaged, or are links.
  explicit OpenCheckpoint(std::filesystem::path folder);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] const Manifest& manifest() const noexcept { return manifest_; }
  /// Identifies the checkpoint. All processes of a job must get the same.
  [[nodiscard]] const files::Hash& hash() const noexcept { return hash_; }

  /// Returns null if there is no tensor of this name.
  [[nodiscard]] const StoredTensor* find(std::string_view name) const noexcept;

  /// Compares the bytes of a file with the manifest's hash, and its header with the manifest's pieces. Throws
  /// Error{data}.
  void check_file(std::size_t number) const;
  void check_all_files() const;
  /// Frees what is only needed for reading: the open files, which keep the space of removed files, and the manifest's
  /// tensors, which take hundreds of megabytes for a thousand ranks. Nothing may be read afterwards.
  void release() const noexcept;

  /// Copies a part of a tensor into `to`: its elements in the part's row-major order, in their stored type. May read
  /// bytes between the requested ones if that makes fewer reads. Throws Error{data} if an element of the part is in no
  /// piece or in several, Error{io} if a file has changed.
  void read(const StoredTensor& tensor, const mesh::Box& part, std::span<std::byte> to) const;

 private:
  [[nodiscard]] const files::SteadyFile& file(std::size_t number) const;

  std::filesystem::path path_;
  mutable Manifest manifest_;
  files::Hash hash_;
  mutable std::map<std::size_t, files::SteadyFile> open_;  ///< by the number of the file
};

/// Whether the constructor of OpenCheckpoint accepts the folder: its manifest is valid, and all files exist with their
/// sizes. Reads no tensor.
[[nodiscard]] bool can_be_opened(const std::filesystem::path& folder);

// The parts of opening and checking a checkpoint. All throw Error{data}.

/// Opens a file of a checkpoint. It must be a regular file, not a link.
[[nodiscard]] files::SteadyFile open_stored(const std::filesystem::path& path);
/// The same; the file must also have the manifest's size.
[[nodiscard]] files::SteadyFile open_stored(const std::filesystem::path& folder, const StoredFile& stored);
/// The text of a checkpoint's manifest.
[[nodiscard]] std::string manifest_text(const std::filesystem::path& folder);
[[nodiscard]] Manifest read_manifest(const std::filesystem::path& folder);
/// Reads all bytes of a file and compares their hash.
void check_hash(const files::SteadyFile& file, const files::Hash& expected);
/// Checks that the file's safetensors header has the manifest's pieces for this file, and no others.
void check_pieces(const files::SteadyFile& file, const Manifest& manifest, std::size_t index);

/// The checkpoint to which a path refers: the checkpoint in that folder, or the newest complete one in a folder of
/// checkpoints or in a run's folder. Throws Error{data} if there is none.
[[nodiscard]] std::filesystem::path find_checkpoint(const std::filesystem::path& given);

}  // namespace shardrun::checkpoint
