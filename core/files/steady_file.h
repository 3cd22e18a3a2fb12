#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/descriptor.h"

namespace shardrun::files {

/// What the system records about a file. It identifies one state of the file. Times are nanoseconds since 1970.
struct FileStamp {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::int64_t modified = 0;  ///< last change of the file's bytes
  std::int64_t changed = 0;   ///< last change of bytes, name, owner or permissions; no program can reset it

  bool operator==(const FileStamp&) const = default;
};

/// A 64-bit hash. It detects accidental differences, but an attacker can construct collisions.
[[nodiscard]] std::uint64_t hash_of(std::span<const std::byte> bytes) noexcept;

/// A regular file that is read through one descriptor and must not change. Reads copy, so a truncated file causes an
/// error, while a mapped file would raise SIGBUS. Only one thread at a time may use it, except for read().
class SteadyFile {
 public:
  /// The fingerprint is made of whole pages.
  static constexpr std::size_t page = 4096;
  /// The number of bytes of a file that its fingerprint covers by default.
  static constexpr std::size_t usual_hashed = std::size_t{64} << 20U;

  /// Opens the file. `hashed`: how many bytes fingerprint() covers. Throws Error{data} if the path does not exist, is
  /// not a regular file or cannot be read; Error{io} if the system lacks descriptors.
  explicit SteadyFile(std::filesystem::path path, std::size_t hashed = usual_hashed);
  /// Takes a file that is already open, such as a memfd. `path` names it in messages.
  SteadyFile(FileDescriptor file, std::filesystem::path path);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] std::size_t size() const noexcept { return stamp_.size; }
  [[nodiscard]] const FileStamp& stamp() const noexcept { return stamp_; }
  [[nodiscard]] const FileDescriptor& descriptor() const noexcept { return file_; }

  /// Copies the file's bytes from `offset` on. Any thread may call it. Throws Error{io} if the file has become too
  /// short or cannot be read.
  void read(std::size_t offset, std::span<std::byte> to) const;

  /// Describes how the file differs from its state when it was opened ("it had 100 bytes and has 90 now"); nothing if
  /// it does not. A new change time alone does not count if the fingerprint is known and the same, because renaming,
  /// linking or removing the file also sets it. In a file of more than `hashed` bytes, a change outside of the
  /// fingerprint's pages is missed if the writer also resets the time of last modification.
  [[nodiscard]] std::optional<std::string> change() const;
  /// Throws Error{io} that says what changed. If it does not throw, earlier reads returned the bytes of the
  /// file as opened.
  void require_unchanged() const;

  /// A text such as "1115394 bytes, hash 9d2c5681a3b0c7f4". The hash covers a file of up to `hashed` bytes (default: 64
  /// MiB) completely. Of a larger file, it covers `hashed` bytes in evenly spaced pages, and what hash_also() has
  /// added. The first call reads these bytes. Throws as read() does.
  [[nodiscard]] const std::string& fingerprint() const;
  /// Makes the fingerprint also cover the pages that hold these bytes. REQUIRES: the file has these bytes, and
  /// fingerprint() has not been called.
  void hash_also(std::size_t offset, std::size_t bytes);

  // A handle lets another process of this host open the same file. The file is compared with the handle's stamp, which
  // detects a descriptor number that now belongs to another file.

  /// Makes a handle. It is one word that has the descriptor's place, the stamp and the fingerprint. `process`: the
  /// process that has the descriptor `number`, or 0 if the process that opens the handle inherits it.
  [[nodiscard]] std::string handle(int process, int number) const;
  /// Opens the file of a handle. The result owns an inherited descriptor. Returns nothing if the process has ended, or
  /// if the number now belongs to another file. Throws Error{io} if the word is not a handle, or if the file has
  /// changed since the handle was made.
  [[nodiscard]] static std::optional<SteadyFile> open_handle(std::string_view handle, std::filesystem::path path);

 private:
  [[nodiscard]] FileStamp stamp_now() const;

  std::filesystem::path path_;
  FileDescriptor file_;
  std::size_t hashed_ = usual_hashed;
  std::vector<std::size_t> also_hashed_;  ///< numbers of pages, in any order
  // Set by const functions, so only one thread at a time may call those.
  mutable FileStamp stamp_;
  mutable std::string fingerprint_;  ///< empty: not computed yet
};

}  // namespace shardrun::files
