#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/steady_file.h"
#include "core/graph/tensor_type.h"

namespace shardrun::data {

enum class NpyType : std::uint8_t { boolean, i8, i16, i32, i64, u8, u16, u32, u64, f16, f32, f64 };

[[nodiscard]] std::size_t element_bytes(NpyType type) noexcept;
[[nodiscard]] bool is_integer(NpyType type) noexcept;
[[nodiscard]] bool is_signed(NpyType type) noexcept;
/// Whether an array of tokens can have this type. It can have all integer types except bool.
[[nodiscard]] bool can_be_token(NpyType type) noexcept;
/// The name of the type in NumPy: "float32".
[[nodiscard]] const char* to_string(NpyType type) noexcept;

/// The header of a .npy file.
struct NpyHeader {
  NpyType type = NpyType::f32;
  std::vector<std::int64_t> shape;  ///< in C order; empty for a scalar
  std::int64_t elements = 1;
  std::size_t data_offset = 0;
};

/// The largest length of a header that parse_npy() accepts, in bytes.
inline constexpr std::size_t most_header_bytes = std::size_t{1} << 20U;

/// Parses a header of version 1 to 3. Checks that exactly the array's values follow it. `head`: the whole file, or its
/// first most_header_bytes. `bytes`: the size of the file. `source` names the file in messages. Throws Error{data} for
/// another format, a file of the wrong size, Fortran order, big-endian numbers, or a type that is not in NpyType.
[[nodiscard]] NpyHeader parse_npy(std::span<const std::byte> head, std::size_t bytes, std::string_view source);

/// Parses a header like parse_npy(), but does not check the file's size, because other bytes can follow the array.
[[nodiscard]] NpyHeader parse_npy_header(std::span<const std::byte> head, std::size_t bytes, std::string_view source);

/// The header of a .npy file, as numpy.save writes it (version 1). `descr`: NumPy's code of the element type,
/// such as "<f4".
[[nodiscard]] std::string npy_header(std::string_view descr, const std::vector<std::int64_t>& shape);

/// Converts elements of a .npy file. Real numbers are rounded to nearest, ties to even. Throws Error{data} if `type` is
/// real and `dtype` is not. Throws Error{data} with the index of the first element that is NaN or infinite, or that
/// `dtype` cannot hold. REQUIRES: `from` and `to` have the same number of elements.
void convert_elements(NpyType type, std::span<const std::byte> from, graph::DType dtype, std::span<std::byte> to);

/// An array in a .npy file. Elements are read on demand; the file must not change.
class NpyArray {
 public:
  /// Takes an open file and parses its header. Throws as parse_npy() and files::SteadyFile::read() do.
  explicit NpyArray(files::SteadyFile file);

  [[nodiscard]] NpyType type() const noexcept { return header_.type; }
  [[nodiscard]] const std::vector<std::int64_t>& shape() const noexcept { return header_.shape; }
  [[nodiscard]] std::int64_t elements() const noexcept { return header_.elements; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return file_.path(); }
  [[nodiscard]] const files::SteadyFile& file() const noexcept { return file_; }

  // These functions fill `to` with elements from index `first` on, and allocate nothing. REQUIRES: the array has these
  // elements. They throw as files::SteadyFile::read() does.

  /// Converts elements as a C++ cast does.
  void read(std::int64_t first, std::span<float> to) const;
  void read(std::int64_t first, std::span<std::int64_t> to) const;
  /// Copies elements in the type of the file, little-endian.
  void read_bytes(std::int64_t first, std::span<std::byte> to) const;

 private:
  files::SteadyFile file_;
  NpyHeader header_;
};

}  // namespace shardrun::data
