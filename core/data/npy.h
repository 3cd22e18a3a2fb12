#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/mapped_file.h"

namespace shardrun::data {

enum class NpyType : std::uint8_t { boolean, i8, i16, i32, i64, u8, u16, u32, u64, f32, f64 };

[[nodiscard]] std::size_t element_bytes(NpyType type) noexcept;
[[nodiscard]] bool is_integer(NpyType type) noexcept;
/// numpy's name: "float32".
[[nodiscard]] const char* to_string(NpyType type) noexcept;

/// What precedes the values of a .npy file.
struct NpyHeader {
  NpyType type = NpyType::f32;
  std::vector<std::int64_t> shape;  ///< C order; no dimensions for a scalar
  std::int64_t elements = 1;
  std::size_t data_offset = 0;
};

/// Reads the header of versions 1 to 3 and checks that exactly the values follow it. `source` names the file in
/// messages. Throws Error{data}: not this format, cut short or too long, Fortran order, big-endian, or a type that is
/// not NpyType.
[[nodiscard]] NpyHeader parse_npy(std::span<const std::byte> file, std::string_view source);

/// An array in a .npy file: mapped, not read.
class NpyArray {
 public:
  /// Throws as `parse_npy` and files::MappedFile do.
  explicit NpyArray(const std::filesystem::path& path);

  [[nodiscard]] NpyType type() const noexcept { return header_.type; }
  [[nodiscard]] const std::vector<std::int64_t>& shape() const noexcept { return header_.shape; }
  [[nodiscard]] std::int64_t elements() const noexcept { return header_.elements; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return file_.path(); }
  /// Row-major, little-endian; not necessarily aligned to an element.
  [[nodiscard]] std::span<const std::byte> values() const noexcept {
    return file_.bytes().subspan(header_.data_offset);
  }

  /// Elements first, first + 1, … converted as a C++ cast does. REQUIRES: they exist.
  void read(std::int64_t first, std::span<float> to) const;
  void read(std::int64_t first, std::span<std::int64_t> to) const;

 private:
  files::MappedFile file_;
  NpyHeader header_;
};

}  // namespace shardrun::data
