#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/files/descriptor.h"

namespace shardrun::files {

/// What tells one state of a file from another, as the system keeps it. Times are nanoseconds since 1970.
struct FileStamp {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::int64_t modified = 0;  ///< its bytes
  std::int64_t changed = 0;   ///< its bytes, name, owner or permissions; no program can set it back

  bool operator==(const FileStamp&) const = default;
};

/// Tells bytes from others: not for those that somebody made to collide.
[[nodiscard]] std::uint64_t hash_of(std::span<const std::byte> bytes) noexcept;

/// A regular file that is read through one descriptor, from the same bytes to the end. Reads copy: a file that is cut
/// short is an error that says so, never SIGBUS, as a mapping of it would be. One thread at a time, except for read().
class SteadyFile {
 public:
  /// Throws Error{data} where the path names nothing, no regular file or one that cannot be read, Error{io} where the
  /// system is short of descriptors.
  explicit SteadyFile(std::filesystem::path path);
  /// A file that is open already, such as a memfd. `path`: what messages call it.
  SteadyFile(FileDescriptor file, std::filesystem::path path);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] std::size_t size() const noexcept { return stamp_.size; }
  [[nodiscard]] const FileStamp& stamp() const noexcept { return stamp_; }
  [[nodiscard]] const FileDescriptor& descriptor() const noexcept { return file_; }

  /// Copies the bytes from `offset` on, which the file had when it was opened. Any thread. Throws Error{io} where they
  /// are not there any more, or cannot be read.
  void read(std::size_t offset, std::span<std::byte> to) const;

  /// How the file differs from what was opened: "it had 100 bytes and was last modified …"; nothing where it does not.
  /// Only a new change time is no difference where the fingerprint is known and still the same: a file that is renamed,
  /// linked or removed has one too. So of a file above 64 MiB a change between the pages of the fingerprint is not seen
  /// where the writer also sets back the time of the last modification.
  [[nodiscard]] std::optional<std::string> change() const;
  /// Throws Error{io} that says what changed. Call it after reads: what they copied was then of the file as opened.
  void require_unchanged() const;

  /// "1115394 bytes, hash 9d2c5681a3b0c7f4". The hash is of all bytes up to 64 MiB, and of a larger file of a page at
  /// each of as many even distances. Reads them when it is first called. Throws as `read`.
  [[nodiscard]] const std::string& fingerprint() const;

  // How another process of this host gets at the same open file. It is then compared with the stamp, so that a number
  // that has come to mean another file is found out.

  /// One word: where the descriptor is, the stamp and the fingerprint. `process`: whose descriptor `number` is; 0: that
  /// the process inherits it.
  [[nodiscard]] std::string handle(int process, int number) const;
  /// Opens the file that a handle tells of; an inherited descriptor then belongs to the result. Nothing where it cannot
  /// be had: the process is out of reach, or its number means another file. Throws Error{io} where the word is no
  /// handle, or the file has changed since.
  [[nodiscard]] static std::optional<SteadyFile> open_handle(std::string_view handle, std::filesystem::path path);

 private:
  [[nodiscard]] FileStamp stamp_now() const;

  std::filesystem::path path_;
  FileDescriptor file_;
  // const functions set these, so only one thread at a time may call them.
  mutable FileStamp stamp_;
  mutable std::string fingerprint_;  ///< empty: not known
};

}  // namespace shardrun::files
