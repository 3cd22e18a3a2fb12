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
/// numpy's name: "float32".
[[nodiscard]] const char* to_string(NpyType type) noexcept;

/// The header of a .npy file.
struct NpyHeader {
  NpyType type = NpyType::f32;
  std::vector<std::int64_t> shape;  ///< C order; no dimensions for a scalar
  std::int64_t elements = 1;
  std::size_t data_offset = 0;
};

/// Every header that parse_npy() accepts is at most this long.
inline constexpr std::size_t most_header_bytes = std::size_t{1} << 20U;

/// Parses a header of version 1 to 3 from `head`, the start of a file of `bytes` bytes, and checks that exactly the
/// values follow it. `source` names the file in messages. Throws Error{data} for another format, a file that is too
/// short or too long, Fortran order, big-endian numbers, or a type that is not in NpyType. REQUIRES: `head` is the
/// whole file, or its first most_header_bytes.
[[nodiscard]] NpyHeader parse_npy(std::span<const std::byte> head, std::size_t bytes, std::string_view source);

/// The same without the check of the file's size, for an array that is followed by other bytes.
[[nodiscard]] NpyHeader parse_npy_header(std::span<const std::byte> head, std::size_t bytes, std::string_view source);

/// The header of an array, as numpy.save writes it (version 1). `descr`: NumPy's code of the element type, such as
/// "<f4".
[[nodiscard]] std::string npy_header(std::string_view descr, const std::vector<std::int64_t>& shape);

/// Converts elements of a .npy file. Real numbers are rounded to nearest, ties to even. Throws Error{data}, which names
/// the first element that `dtype` cannot hold: for real types one that is, or becomes, NaN or infinite; for integer
/// types one out of range, or any real number. REQUIRES: `from` and `to` have the same number of elements.
void convert_elements(NpyType type, std::span<const std::byte> from, graph::DType dtype, std::span<std::byte> to);

/// An array in a .npy file. Elements are read on demand; the file must not change.
class NpyArray {
 public:
  /// Throws as `parse_npy` and files::SteadyFile do.
  explicit NpyArray(files::SteadyFile file);

  [[nodiscard]] NpyType type() const noexcept { return header_.type; }
  [[nodiscard]] const std::vector<std::int64_t>& shape() const noexcept { return header_.shape; }
  [[nodiscard]] std::int64_t elements() const noexcept { return header_.elements; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return file_.path(); }
  [[nodiscard]] const files::SteadyFile& file() const noexcept { return file_; }

  // The following fill `to` with the elements first, first + 1, …, and allocate nothing. REQUIRES: the array has them.
  // They throw as files::SteadyFile::read does.

  /// Converts elements as a C++ cast does.
  void read(std::int64_t first, std::span<float> to) const;
  void read(std::int64_t first, std::span<std::int64_t> to) const;
  /// Copies elements as the file stores them: little-endian.
  void read_bytes(std::int64_t first, std::span<std::byte> to) const;

 private:
  files::SteadyFile file_;
  NpyHeader header_;
};

}  // namespace shardrun::data
