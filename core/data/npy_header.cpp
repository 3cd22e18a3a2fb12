#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/data/file_format.h"
#include "core/data/npy.h"

// The format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
// "\x93NUMPY", version (2 bytes), length of the header (2 bytes; 4 from version 2 on), the header, the values. The
// header is a Python dictionary with exactly three keys: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }

namespace shardrun::data {
namespace {

struct TypeName {
  std::string_view descr;
  NpyType type;
};

constexpr std::array type_names = {
    TypeName{"|b1", NpyType::boolean}, TypeName{"|i1", NpyType::i8},  TypeName{"<i2", NpyType::i16},
    TypeName{"<i4", NpyType::i32},     TypeName{"<i8", NpyType::i64}, TypeName{"|u1", NpyType::u8},
    TypeName{"<u2", NpyType::u16},     TypeName{"<u4", NpyType::u32}, TypeName{"<u8", NpyType::u64},
    TypeName{"<f2", NpyType::f16},     TypeName{"<f4", NpyType::f32}, TypeName{"<f8", NpyType::f64},
};

constexpr std::size_t magic_and_version_bytes = 8;

[[noreturn]] void refuse(std::string_view source, const std::string& fault) {
  throw Error(ErrorCode::data, fmt::format("cannot read array '{}': {}", source, fault));
}

/// Parses the header's Python dictionary, token by token.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, std::string_view source) : rest_(text), source_(source) {}

  /// Returns the header's type, shape and number of elements.
  NpyHeader read() {
    NpyHeader header;
    bool has_type = false;
    bool has_order = false;
    bool has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string_view key = string();
      expect(':');
      if (key == "descr" && !std::exchange(has_type, true)) {
        header.type = type();
      } else if (key == "fortran_order" && !std::exchange(has_order, true)) {
        require_c_order();
      } else if (key == "shape" && !std::exchange(has_shape, true)) {
        header.shape = shape();
      } else {
        refuse(source_, fmt::format("its header has the key '{}', unknown or twice", key));
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!rest_.empty()) {
      malformed("its end");
    }
    if (!has_type || !has_order || !has_shape) {
      refuse(source_, "its header lacks one of the keys 'descr', 'fortran_order', 'shape'");
    }
    header.elements = element_count(header.shape);
    return header;
  }

 private:
  [[noreturn]] void malformed(std::string_view expected) const {
    refuse(source_, fmt::format("its header is malformed: expected {} before \"{}\"", expected, rest_.substr(0, 20)));
  }

  void skip_space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\n"), rest_.size())); }

  bool accept(char c) {
    skip_space();
    if (!rest_.starts_with(c)) {
      return false;
    }
    rest_.remove_prefix(1);
    return true;
  }

  void expect(char c) {
    if (!accept(c)) {
      malformed(fmt::format("'{}'", c));
    }
  }

  bool accept_word(std::string_view word) {
    skip_space();
    if (!rest_.starts_with(word)) {
      return false;
    }
    rest_.remove_prefix(word.size());
    return true;
  }

  std::string_view string() {
    const char quote = accept('\'') ? '\'' : '"';
    if (quote == '"') {
      expect('"');
    }
    const std::size_t end = rest_.find(quote);
    if (end == std::string_view::npos) {
      malformed("a closing quote");
    }
    const std::string_view text = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return text;
  }

  NpyType type() {
    skip_space();
    if (rest_.starts_with('[')) {
      refuse(source_, "it holds records (a structured dtype); save plain numbers");
    }
    const std::string_view descr = string();
    const auto* const known =
        std::find_if(type_names.begin(), type_names.end(), [&](const TypeName& name) { return name.descr == descr; });
    if (known != type_names.end()) {
      return known->type;
    }
    if (descr.find('O') != std::string_view::npos) {
      refuse(source_,
             "it holds Python objects (dtype object); save numbers, as array.astype('float32'), or "
             "array.astype('int64') for labels");
    }
    const std::string little = "<" + std::string(descr.substr(std::min<std::size_t>(1, descr.size())));
    if (descr.starts_with('>') && std::ranges::find(type_names, little, &TypeName::descr) != type_names.end()) {
      refuse(source_, fmt::format("its numbers are big-endian (dtype '{}'); save array.astype('{}')", descr, little));
    }
    refuse(
        source_,
        fmt::format("its dtype '{}' is not supported; save bool, int8 to int64, uint8 to uint64, or float16 to float64",
                    descr));
  }

  void require_c_order() {
    if (accept_word("True")) {
      refuse(source_, "it is in Fortran order; save numpy.ascontiguousarray(array)");
    }
    if (!accept_word("False")) {
      malformed("False");
    }
  }

  std::vector<std::int64_t> shape() {
    std::vector<std::int64_t> dimensions;
    expect('(');
    while (!accept(')')) {
      dimensions.push_back(dimension());
      if (!accept(',')) {
        // In Python, (3) is a number and (3,) is a tuple, which a shape has to be.
        if (dimensions.size() == 1) {
          malformed("','");
        }
        expect(')');
        break;
      }
    }
    return dimensions;
  }

  std::int64_t dimension() {
    skip_space();
    std::int64_t value = 0;
    const auto [end, failed] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (failed != std::errc() || value < 0) {
      malformed("a dimension, an integer from 0 to 2^63 - 1,");
    }
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }

  std::int64_t element_count(const std::vector<std::int64_t>& dimensions) const {
    std::int64_t elements = 1;
    for (const std::int64_t size : dimensions) {
      if (__builtin_mul_overflow(elements, size, &elements)) {
        refuse(source_,
               fmt::format("its shape ({}) has more elements than 64 bits count", fmt::join(dimensions, ", ")));
      }
    }
    return elements;
  }

  std::string_view rest_;
  std::string_view source_;
};

std::size_t little_endian(std::span<const std::byte> bytes) {
  std::size_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    value = (value << 8U) | std::to_integer<std::size_t>(bytes[i]);
  }
  return value;
}

/// The offsets at which the dictionary begins and ends. Throws Error{data} if there is no such header.
std::pair<std::size_t, std::size_t> header_bounds(std::span<const std::byte> file, std::size_t bytes,
                                                  std::string_view source) {
  const FileFormat format = format_of(file);
  if (format == FileFormat::zip) {
    refuse(source,
           "it is a zip archive of arrays, as numpy.savez (.npz) and torch.save write: save each array by itself, as "
           "numpy.save('x.npy', numpy.load('data.npz')['x']), or take the .npy files out with unzip");
  }
  if (format != FileFormat::npy) {
    refuse(source, fmt::format("it {}does not start as a .npy file does (\"\\x93NUMPY\"); save it with numpy.save",
                               format == FileFormat::unknown ? "" : fmt::format("is {} and ", to_string(format))));
  }
  if (file.size() < magic_and_version_bytes + 2) {
    refuse(source, fmt::format("it is cut short: {} bytes do not hold a header", file.size()));
  }
  const auto version = std::to_integer<unsigned>(file[6]);
  if (version < 1 || version > 3 || file[7] != std::byte{0}) {
    refuse(source, fmt::format("its format version is {}.{}; versions 1.0, 2.0 and 3.0 are known", version,
                               std::to_integer<unsigned>(file[7])));
  }
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  const std::size_t begin = magic_and_version_bytes + length_bytes;
  if (file.size() < begin) {
    refuse(source, fmt::format("it is cut short: {} bytes do not hold a header", file.size()));
  }
  const std::size_t length = little_endian(file.subspan(magic_and_version_bytes, length_bytes));
  if (length > bytes - begin) {
    refuse(source, fmt::format("it is cut short: its header has {} bytes, {} are there", length, bytes - begin));
  }
  if (length > file.size() - begin) {
    refuse(source, fmt::format("its header has {} bytes: at most {} are read", length, file.size() - begin));
  }
  return {begin, begin + length};
}

}  // namespace

NpyHeader parse_npy_header(std::span<const std::byte> head, std::size_t bytes, std::string_view source) {
  const auto [begin, end] = header_bounds(head, bytes, source);
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + begin, end - begin);
  NpyHeader header = HeaderReader(text, source).read();
  header.data_offset = end;
  return header;
}

NpyHeader parse_npy(std::span<const std::byte> head, std::size_t bytes, std::string_view source) {
  const NpyHeader header = parse_npy_header(head, bytes, source);
  const std::size_t found = bytes - header.data_offset;
  std::size_t expected = 0;
  if (__builtin_mul_overflow(static_cast<std::size_t>(header.elements), element_bytes(header.type), &expected) ||
      expected != found) {
    refuse(source,
           fmt::format("shape ({}) of {} needs {} bytes, the file has {}: it is {}", fmt::join(header.shape, ", "),
                       to_string(header.type), expected, found, found < expected ? "cut short" : "not what it says"));
  }
  return header;
}

std::string npy_header(std::string_view descr, const std::vector<std::int64_t>& shape) {
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", descr,
                                 fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  constexpr std::size_t before = 10;  // magic (6 bytes), version (2), length (2)
  text.append(63 - (before + text.size()) % 64, ' ');
  text += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += {static_cast<char>(text.size() & 0xFFU), static_cast<char>(text.size() >> 8U)};
  return header + text;
}

}  // namespace shardrun::data
