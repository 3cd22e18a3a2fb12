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

/// Identifies a state of a file by the system's records of it. Times are nanoseconds since 1970.
struct FileStamp {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::int64_t modified = 0;  ///< last change of its bytes
  std::int64_t changed = 0;   ///< last change of bytes, name, owner or permissions; no program can set it back

  bool operator==(const FileStamp&) const = default;
};

/// A hash that tells bytes apart, but not against deliberate collisions.
[[nodiscard]] std::uint64_t hash_of(std::span<const std::byte> bytes) noexcept;

/// A regular file that is read through one descriptor and must keep its bytes. Reads copy, so a file that is cut short
/// is an error instead of the SIGBUS of a mapping. One thread at a time, except for read().
class SteadyFile {
 public:
  /// Throws Error{data} if the path does not exist, is not a regular file or cannot be read; Error{io} if the system is
  /// short of descriptors.
  explicit SteadyFile(std::filesystem::path path);
  /// A file that is already open, such as a memfd. `path`: its name in messages.
  SteadyFile(FileDescriptor file, std::filesystem::path path);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] std::size_t size() const noexcept { return stamp_.size; }
  [[nodiscard]] const FileStamp& stamp() const noexcept { return stamp_; }
  [[nodiscard]] const FileDescriptor& descriptor() const noexcept { return file_; }

  /// Copies the bytes from `offset` on, which the file had when it was opened. Any thread. Throws Error{io} if they are
  /// gone or cannot be read.
  void read(std::size_t offset, std::span<std::byte> to) const;

  /// How the file differs from the one opened, "it had 100 bytes and was last modified …"; nothing if it does not.
  /// Renaming, linking or removing a file sets a new change time too. So a new change time alone does not count if the
  /// fingerprint is known and unchanged. Limit: of a file above 64 MiB, a change outside of the fingerprint's pages is
  /// not seen if the writer also sets back the time of last modification.
  [[nodiscard]] std::optional<std::string> change() const;
  /// Throws Error{io} that says what changed. If it passes after reads, they copied the bytes of the file as opened.
  void require_unchanged() const;

  /// "1115394 bytes, hash 9d2c5681a3b0c7f4". The hash is of all bytes up to 64 MiB; of a larger file, of that many
  /// bytes in pages at even distances. Reads them at the first call. Throws as `read`.
  [[nodiscard]] const std::string& fingerprint() const;

  // A handle lets another process of this host open the same file. The file is compared with the stamp, so a descriptor
  // number that now means another file is detected.

  /// One word with the descriptor's place, the stamp and the fingerprint. `process`: the owner of descriptor `number`;
  /// 0: the reader inherits the descriptor.
  [[nodiscard]] std::string handle(int process, int number) const;
  /// Opens the file of a handle; the result then owns an inherited descriptor. Nothing if the file is out of reach: the
  /// process is gone, or its number means another file. Throws Error{io} if the word is not a handle, or if the file
  /// has changed since.
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
