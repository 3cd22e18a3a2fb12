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

// The safetensors format: 8 bytes, little-endian, with the length of a JSON header; the header; the tensors' bytes
// without gaps. https://huggingface.co/docs/safetensors/index#format

namespace shardrun::checkpoint {

/// In the order in which the format's own library stores tensors, from narrow to wide elements.
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
/// The format's name of a type: "F32".
[[nodiscard]] const char* to_string(DType dtype) noexcept;
[[nodiscard]] std::optional<DType> dtype_of(std::string_view name) noexcept;

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  ///< row-major; empty for a scalar

  bool operator==(const TensorInfo&) const = default;
};

/// Bytes of the tensor; nothing if the number exceeds 63 bits or a dimension is negative.
[[nodiscard]] std::optional<std::uint64_t> tensor_bytes(const TensorInfo& info) noexcept;

/// A tensor and its values. In a file that was read, the values are in the mapped file and may be unaligned.
struct Tensor {
  TensorInfo info;
  std::span<const std::byte> bytes;
};

using Metadata = std::map<std::string, std::string>;

inline constexpr std::uint64_t max_header_bytes = 100'000'000;

/// The offsets of all tensors in a file. Tensors are ordered by the width of their elements, the widest first, then by
/// name. This aligns every tensor, and the file equals that of the format's own library.
struct TensorFileLayout {
  std::string header;                  ///< length, JSON and padding to a multiple of 8
  std::vector<TensorInfo> tensors;     ///< in file order
  std::vector<std::uint64_t> offsets;  ///< per tensor, from the start of the file
  std::uint64_t file_bytes = 0;
};

/// Throws Error{internal} if names repeat, are not UTF-8 or are "__metadata__", or if sizes overflow.
[[nodiscard]] TensorFileLayout lay_out(std::vector<TensorInfo> tensors, const Metadata& metadata);

/// The layout of a file with one array, as numpy.save writes it (version 1). Throws Error{internal} if its size
/// overflows, or if NumPy lacks its element type.
[[nodiscard]] TensorFileLayout lay_out_npy(const TensorInfo& tensor);

/// The offsets of the tensors in a file that is being written, and how many bytes of each are still missing.
class TensorRanges {
 public:
  explicit TensorRanges(const TensorFileLayout& layout);

  /// Returns the offset of a piece in the file, and counts the piece as written. Throws Error{internal} if there is no
  /// such tensor or the piece does not lie within it.
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

/// Writes a file whose tensors come in pieces, in any order. Until `commit`, and after an error, the path keeps the old
/// file.
class TensorFileWriter {
 public:
  /// Reserves disk space for the file. Throws Error{io}.
  TensorFileWriter(std::filesystem::path path, const TensorFileLayout& layout);

  /// Writes a piece of a tensor's bytes at `offset` in the tensor. REQUIRES: no byte is written twice. Throws
  /// Error{io}; Error{internal} if there is no such tensor or the piece does not lie within it.
  void write(std::string_view name, std::uint64_t offset, std::span<const std::byte> bytes);
  /// Leaves a piece for another process to write (TensorFilePieces), and counts it as written.
  void leave(std::string_view name, std::uint64_t offset, std::uint64_t bytes);
  /// Completes the file. Throws Error{io}; Error{internal} if bytes of a tensor are still missing.
  void commit();

 private:
  files::AtomicFile file_;
  TensorRanges ranges_;
};

/// Writes pieces of a file for which another process has made a TensorFileWriter with the same layout. That process
/// commits later.
class TensorFilePieces {
 public:
  TensorFilePieces(std::filesystem::path path, const TensorFileLayout& layout);

  void write(std::string_view name, std::uint64_t offset, std::span<const std::byte> bytes);
  /// Makes the written pieces durable. Throws Error{io}.
  void finish() { file_.sync(); }

 private:
  std::string name_;
  files::UnfinishedFile file_;
  TensorRanges ranges_;
};

/// Writes a file of complete tensors. Throws as TensorFileWriter does; Error{internal} also if a tensor's bytes do not
/// match its shape.
void write_safetensors(const std::filesystem::path& path, std::span<const Tensor> tensors, const Metadata& metadata);

struct SafetensorsContents {
  std::vector<Tensor> tensors;  ///< in file order; their bytes point into the parsed memory
  Metadata metadata;
};

/// Parses a file, and checks every byte of the header and every size. `source` names the file in messages. Throws
/// Error{data}.
[[nodiscard]] SafetensorsContents parse_safetensors(std::span<const std::byte> file, std::string_view source);

/// The same for an open file. It reads the header through `file` and touches no byte of `mapped`, which is the whole
/// file.
[[nodiscard]] SafetensorsContents parse_safetensors(const files::SteadyFile& file, std::span<const std::byte> mapped);

/// The bytes of a file of weights that its fingerprint covers. Each rank reads them beside its parts, so they are few.
/// Weights of other training differ in all pages; states of other steps may not.
inline constexpr std::size_t hashed_of_weights = std::size_t{256} << 10U;

/// An open file whose header has been checked. Its tensors point into the mapped file, which lives as long as this
/// object, also when that is moved. If another process truncates the file, touching them ends the process by SIGBUS.
/// Code that reads others' files therefore copies with read().
class SafetensorsFile {
 public:
  /// Throws as `parse_safetensors` and files::SteadyFile do. `hashed`: as there.
  explicit SafetensorsFile(std::filesystem::path path, std::size_t hashed = files::SteadyFile::usual_hashed);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return file_.path(); }
  [[nodiscard]] const std::vector<Tensor>& tensors() const noexcept { return contents_.tensors; }
  [[nodiscard]] const Metadata& metadata() const noexcept { return contents_.metadata; }
  /// Returns null if there is no such tensor.
  [[nodiscard]] const Tensor* find(std::string_view name) const noexcept;
  /// If there is no such tensor, throws Error{data}, which suggests the nearest name.
  [[nodiscard]] const Tensor& at(std::string_view name) const;

  /// Copies bytes of one of these tensors, from `offset` on. REQUIRES: the tensor has them. Throws Error{io} if the
  /// file was truncated.
  void read(const Tensor& tensor, std::size_t offset, std::span<std::byte> to) const;
  /// As in files::SteadyFile. Call it after reads, on one thread at a time.
  void require_unchanged() const { file_.require_unchanged(); }
  [[nodiscard]] const std::string& fingerprint() const { return file_.fingerprint(); }

 private:
  files::SteadyFile file_;
  files::MappedFile mapped_;
  SafetensorsContents contents_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
};

}  // namespace shardrun::checkpoint
