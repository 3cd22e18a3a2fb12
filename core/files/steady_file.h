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

/// Identifies a state of a file by what the system records about it. Times are nanoseconds since 1970.
struct FileStamp {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::int64_t modified = 0;  ///< last change of its bytes
  std::int64_t changed = 0;   ///< last change of bytes, name, owner or permissions; programs cannot set it back

  bool operator==(const FileStamp&) const = default;
};

/// A hash that distinguishes bytes, but not against deliberate collisions.
[[nodiscard]] std::uint64_t hash_of(std::span<const std::byte> bytes) noexcept;

/// A regular file that is read through one descriptor and must not change. Reads copy, so a truncated file causes an
/// error instead of the SIGBUS of a mapping. Only one thread at a time may use it, except for read().
class SteadyFile {
 public:
  /// The bytes of a file that its fingerprint covers.
  static constexpr std::size_t usual_hashed = std::size_t{64} << 20U;

  /// Throws Error{data} if the path does not exist, is not a regular file or cannot be read; Error{io} if the system
  /// lacks descriptors. `hashed`: see fingerprint().
  explicit SteadyFile(std::filesystem::path path, std::size_t hashed = usual_hashed);
  /// Takes a file that is already open, such as a memfd. `path`: its name in messages.
  SteadyFile(FileDescriptor file, std::filesystem::path path);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] std::size_t size() const noexcept { return stamp_.size; }
  [[nodiscard]] const FileStamp& stamp() const noexcept { return stamp_; }
  [[nodiscard]] const FileDescriptor& descriptor() const noexcept { return file_; }

  /// Copies the bytes from `offset` on, as the file had them when it was opened. Any thread may call it. Throws
  /// Error{io} if they are gone or cannot be read.
  void read(std::size_t offset, std::span<std::byte> to) const;

  /// How the file differs from the one that was opened, "it had 100 bytes and was last modified …"; nothing if it does
  /// not differ. Renaming, linking or removing a file also sets a new change time, so a new change time alone does not
  /// count if the fingerprint is known and unchanged. Limit: in a file above `hashed` bytes, a change outside of the
  /// fingerprint's pages is not noticed if the writer also sets back the time of last modification.
  [[nodiscard]] std::optional<std::string> change() const;
  /// Throws Error{io}, which says what changed. If it passes after reads, they have copied the bytes of the file as
  /// opened.
  void require_unchanged() const;

  /// A text "1115394 bytes, hash 9d2c5681a3b0c7f4". The hash covers all bytes of a file up to `hashed`, which is 64 MiB
  /// if nobody sets it; of a larger file, that many bytes in pages at equal distances. The first call reads them.
  /// Throws as `read` does.
  [[nodiscard]] const std::string& fingerprint() const;

  // A handle lets another process of this host open the same file. The file is compared with the handle's stamp, so a
  // descriptor number that now belongs to another file is detected.

  /// The handle as one word: the descriptor's place, the stamp and the fingerprint. `process`: the owner of descriptor
  /// `number`; 0: the reader inherits the descriptor.
  [[nodiscard]] std::string handle(int process, int number) const;
  /// Opens the file of a handle; the result then owns an inherited descriptor. Nothing if the file is out of reach: the
  /// process is gone, or the number belongs to another file now. Throws Error{io} if the word is not a handle, or if
  /// the file has changed since.
  [[nodiscard]] static std::optional<SteadyFile> open_handle(std::string_view handle, std::filesystem::path path);

 private:
  [[nodiscard]] FileStamp stamp_now() const;

  std::filesystem::path path_;
  FileDescriptor file_;
  std::size_t hashed_ = usual_hashed;
  // const functions set these two, so only one thread at a time may call those functions.
  mutable FileStamp stamp_;
  mutable std::string fingerprint_;  ///< empty: not known
};

}  // namespace shardrun::files
