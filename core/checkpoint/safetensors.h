#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/files/atomic_file.h"
#include "core/files/mapped_file.h"
#include "core/files/steady_file.h"

// The safetensors format: 8 bytes with the length of the header (little-endian), a JSON header, and the tensors' bytes
// without gaps. https://huggingface.co/docs/safetensors/index#format

namespace shardrun::checkpoint {

/// Element types, in the order in which the safetensors library sorts them.
enum class DType : std::uint8_t {
  boolean,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  f64,
  i64,
  u64
};

[[nodiscard]] std::size_t element_bytes(DType dtype) noexcept;
/// The name of a type in the format: "F32".
[[nodiscard]] const char* to_string(DType dtype) noexcept;
[[nodiscard]] std::optional<DType> dtype_of(std::string_view name) noexcept;

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  ///< row-major; empty for a scalar

  bool operator==(const TensorInfo&) const = default;
};

/// The size of the tensor in bytes; nothing if it exceeds 63 bits or a dimension is negative.
[[nodiscard]] std::optional<std::uint64_t> tensor_bytes(const TensorInfo& info) noexcept;

/// A tensor and its values. Values of a tensor that was read point into the mapped file and can be unaligned.
struct Tensor {
  TensorInfo info;
  std::span<const std::byte> bytes;
};

using Metadata = std::map<std::string, std::string>;

inline constexpr std::uint64_t max_header_bytes = 100'000'000;

/// The offsets of all tensors in a file. Tensors are sorted by element type, from the last DType to the first, then by
/// name. So every tensor is aligned, and the file equals the one that the safetensors library writes.
struct TensorFileLayout {
  std::string header;                  ///< length field, JSON, and padding to a multiple of 8 bytes
  std::vector<TensorInfo> tensors;     ///< in file order
  std::vector<std::uint64_t> offsets;  ///< offset of each tensor, in bytes from the start of the file
  std::uint64_t file_bytes = 0;
};

/// Computes the layout of a safetensors file. Throws Error{internal} if names repeat or are "__metadata__", if names or
/// metadata are not UTF-8, if sizes overflow, or if the header would exceed max_header_bytes.
[[nodiscard]] TensorFileLayout lay_out(std::vector<TensorInfo> tensors, const Metadata& metadata);

/// The layout of a .npy file with one array, as numpy.save writes it (version 1). Throws Error{internal} if its size
/// overflows, or if NumPy has no such element type.
[[nodiscard]] TensorFileLayout lay_out_npy(const TensorInfo& tensor);

/// Keeps track of a file that is being written: each tensor's offset, and how many of its bytes are missing.
class TensorRanges {
 public:
  explicit TensorRanges(const TensorFileLayout& layout);

  /// Returns the offset in the file of a piece of a tensor, and counts the piece as written. `offset`: the piece's
  /// offset in the tensor. Throws Error{internal} if there is no such tensor or the piece does not fit into its rest.
  std::uint64_t take(std::string_view name, std::uint64_t offset, std::uint64_t bytes, std::string_view file);
  /// Throws Error{internal} if bytes of a tensor are still missing.
  void require_whole(std::string_view file) const;

 private:
  struct TensorRange {
    std::uint64_t offset;
    std::uint64_t bytes;
    std::uint64_t missing;
  };

  std::map<std::string, TensorRange, std::less<>> ranges_;
};

/// Writes a safetensors or .npy file whose tensors arrive in pieces, in any order. Until commit(), and after an error,
/// the path keeps the old file.
class TensorFileWriter {
 public:
  /// Reserves disk space for the file. Throws Error{io}.
  TensorFileWriter(std::filesystem::path path, const TensorFileLayout& layout);

  /// Writes a piece of a tensor. `offset`: the piece's offset in the tensor, in bytes. REQUIRES: no byte is written
  /// twice. Throws Error{io}; Error{internal} if there is no such tensor or the piece is not inside of it.
  void write(std::string_view name, std::uint64_t offset, std::span<const std::byte> bytes);
  /// Counts a piece as written, because another process writes it with TensorFilePieces.
  void leave(std::string_view name, std::uint64_t offset, std::uint64_t bytes);
  /// Completes the file. Throws Error{io}; Error{internal} if bytes of a tensor are still missing.
  void commit();

 private:
  files::AtomicFile file_;
  TensorRanges ranges_;
};

/// Writes pieces of a file that another process makes with a TensorFileWriter of the same layout. That process commits
/// the file.
class TensorFilePieces {
 public:
  TensorFilePieces(std::filesystem::path path, const TensorFileLayout& layout);

  void write(std::string_view name, std::uint64_t offset, std::span<const std::byte> bytes);
  /// Waits until the written pieces are durable. Throws Error{io}.
  void finish() { file_.sync(); }

 private:
  std::string name_;
  files::UnfinishedFile file_;
  TensorRanges ranges_;
};

/// Writes a file of complete tensors. Throws as TensorFileWriter does, and Error{internal} if the size of a tensor's
/// bytes does not match its shape.
void write_safetensors(const std::filesystem::path& path, std::span<const Tensor> tensors, const Metadata& metadata);

struct SafetensorsContents {
  std::vector<Tensor> tensors;  ///< in file order; their bytes point into the parsed memory
  Metadata metadata;
};

/// Parses a whole file in memory. Checks every byte of the header and every size. `source` names the file in messages.
/// Throws Error{data}.
[[nodiscard]] SafetensorsContents parse_safetensors(std::span<const std::byte> file, std::string_view source);

/// Parses an open file. Reads the header through `file`. The tensors point into `mapped`, the memory map of the whole
/// file, but this call touches no byte of `mapped`. Throws Error{data}, and as SteadyFile::read() does.
[[nodiscard]] SafetensorsContents parse_safetensors(const files::SteadyFile& file, std::span<const std::byte> mapped);

/// How many bytes of evenly spaced pages a weights file's fingerprint covers, besides the header and a page of each
/// tensor. The number is small because each rank reads them. It suffices because training changes every page of a
/// tensor.
inline constexpr std::size_t hashed_of_weights = std::size_t{256} << 10U;

/// Makes the file's fingerprint cover a tensor of up to a page completely, and of a larger one the page in its middle.
void hash_tensor(files::SteadyFile& file, std::size_t offset, std::size_t bytes);

/// An open file whose header has been checked. Its tensors point into the mapped file, which lives as long as this
/// object, even if the object is moved. If another process truncates the file, touching the mapped bytes ends this
/// process with SIGBUS. Code that reads files of other programs therefore copies with read().
class SafetensorsFile {
 public:
  /// Opens the file and parses its header. `hashed`: as for files::SteadyFile; the fingerprint also covers the header
  /// and a page of each tensor. Throws as parse_safetensors() and files::SteadyFile do.
  explicit SafetensorsFile(std::filesystem::path path, std::size_t hashed = files::SteadyFile::usual_hashed);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return file_.path(); }
  [[nodiscard]] const std::vector<Tensor>& tensors() const noexcept { return contents_.tensors; }
  [[nodiscard]] const Metadata& metadata() const noexcept { return contents_.metadata; }
  /// The tensor of this name; null if there is none.
  [[nodiscard]] const Tensor* find(std::string_view name) const noexcept;
  /// The tensor of this name. If there is none, throws Error{data} with the most similar name.
  [[nodiscard]] const Tensor& at(std::string_view name) const;

  /// Copies bytes of a tensor of this file, from `offset` on. REQUIRES: the tensor has these bytes. Throws Error{io} if
  /// the file was truncated.
  void read(const Tensor& tensor, std::size_t offset, std::span<std::byte> to) const;
  /// Throws if the file has changed, as files::SteadyFile does. Call it after reading, on one thread at a time.
  void require_unchanged() const { file_.require_unchanged(); }
  [[nodiscard]] const std::string& fingerprint() const { return file_.fingerprint(); }

 private:
  files::SteadyFile file_;
  files::MappedFile mapped_;
  SafetensorsContents contents_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
};

}  // namespace shardrun::checkpoint
