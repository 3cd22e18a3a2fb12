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

/// A checkpoint that is open for reading. A file is opened when it is first read, and at most 64 stay open. Only one
/// thread at a time may use the object.
class OpenCheckpoint {
 public:
  /// Reads the manifest. Checks it, the step in the folder's name (if there is one), and the sizes of files. `folder`:
  /// the checkpoint's folder. Throws Error{data} if files are missing, damaged or links; Error{io} as SteadyFile does.
  explicit OpenCheckpoint(std::filesystem::path folder);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] const Manifest& manifest() const noexcept { return manifest_; }
  /// The hash of the manifest. It identifies the checkpoint: all processes of a job must get the same one.
  [[nodiscard]] const files::Hash& hash() const noexcept { return hash_; }

  /// Returns null if there is no tensor of this name.
  [[nodiscard]] const StoredTensor* find(std::string_view name) const noexcept;

  /// Compares the bytes of a file with the manifest's hash, and its header with the manifest's pieces. `number`: the
  /// file's index in the manifest. Throws Error{data} if they differ, Error{io} if the file cannot be read.
  void check_file(std::size_t number) const;
  void check_all_files() const;
  /// Closes the files, which keep the disk space of removed files, and frees the manifest's files and tensors (hundreds
  /// of megabytes for a thousand ranks). No tensor can be read afterwards.
  void release() const noexcept;

  /// Copies a part of a tensor into `to`, in row-major order and in the stored type. Reads bytes between the requested
  /// ones, too, if that saves reads. Throws Error{data} if an element is in no piece or in several, or if a file was
  /// replaced; Error{io} if a file became shorter; Error{internal} if `to` is too small.
  void read(const StoredTensor& tensor, const mesh::Box& part, std::span<std::byte> to) const;

 private:
  [[nodiscard]] const files::SteadyFile& file(std::size_t number) const;

  std::filesystem::path path_;
  mutable Manifest manifest_;
  files::Hash hash_;
  mutable std::map<std::size_t, files::SteadyFile> open_;  ///< open files by their index in the manifest
};

/// Whether OpenCheckpoint accepts the folder: its manifest is valid, and all files exist with the sizes in the
/// manifest. Reads no tensor.
[[nodiscard]] bool can_be_opened(const std::filesystem::path& folder);

// These functions open and check parts of a checkpoint. They throw Error{data}, and Error{io} as SteadyFile does.

/// Opens a file of a checkpoint. Throws if it is a link or no regular file.
[[nodiscard]] files::SteadyFile open_stored(const std::filesystem::path& path);
/// Opens a file of a checkpoint, and also throws if its size is not that of the manifest.
[[nodiscard]] files::SteadyFile open_stored(const std::filesystem::path& folder, const StoredFile& stored);
/// The text of a checkpoint's manifest.
[[nodiscard]] std::string manifest_text(const std::filesystem::path& folder);
[[nodiscard]] Manifest read_manifest(const std::filesystem::path& folder);
/// Reads all bytes of a file, and compares their hash with `expected`.
void check_hash(const files::SteadyFile& file, const files::Hash& expected);
/// Checks that the file's safetensors header has all pieces that the manifest lists for this file, and no others.
/// `index`: the file's index in the manifest.
void check_pieces(const files::SteadyFile& file, const Manifest& manifest, std::size_t index);

/// The checkpoint to which a path refers: the checkpoint in that folder, or the newest complete one in a folder of
/// checkpoints or in a run's folder. Throws Error{data} if there is none.
[[nodiscard]] std::filesystem::path find_checkpoint(const std::filesystem::path& given);

}  // namespace shardrun::checkpoint
