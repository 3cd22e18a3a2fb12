#include "core/data/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <shardrun/sdk/transport/half.hpp>
#include <type_traits>
#include <utility>

#include "core/base/error.h"
#include "core/device/elements.h"

namespace shardrun::data {
namespace {

template <typename From, typename To>
void convert(const std::byte* from, std::span<To> to) {
  for (To& value : to) {
    From stored;
    std::memcpy(&stored, from, sizeof stored);
    if constexpr (std::is_same_v<From, sdk::Half>) {
      value = static_cast<To>(sdk::widen(stored));
    } else {
      value = static_cast<To>(stored);
    }
    from += sizeof stored;
  }
}

template <typename To>
void read_as(NpyType type, const std::byte* from, std::span<To> to) {
  switch (type) {
    case NpyType::boolean:
    case NpyType::u8: return convert<std::uint8_t>(from, to);
    case NpyType::i8: return convert<std::int8_t>(from, to);
    case NpyType::i16: return convert<std::int16_t>(from, to);
    case NpyType::i32: return convert<std::int32_t>(from, to);
    case NpyType::i64: return convert<std::int64_t>(from, to);
    case NpyType::u16: return convert<std::uint16_t>(from, to);
    case NpyType::u32: return convert<std::uint32_t>(from, to);
    case NpyType::u64: return convert<std::uint64_t>(from, to);
    case NpyType::f16: return convert<sdk::Half>(from, to);
    case NpyType::f32: return convert<float>(from, to);
    case NpyType::f64: return convert<double>(from, to);
  }
}

}  // namespace

std::size_t element_bytes(NpyType type) noexcept {
  switch (type) {
    case NpyType::boolean:
    case NpyType::i8:
    case NpyType::u8: return 1;
    case NpyType::i16:
    case NpyType::u16:
    case NpyType::f16: return 2;
    case NpyType::i32:
    case NpyType::u32:
    case NpyType::f32: return 4;
    case NpyType::i64:
    case NpyType::u64:
    case NpyType::f64: return 8;
  }
  return 0;
}

namespace {

/// The number of elements converted at once.
constexpr std::size_t converted_at_once = 1024;

[[noreturn]] void refuse_element(std::size_t index, const std::string& value, graph::DType dtype) {
  throw Error(ErrorCode::data, fmt::format("its element {} (counted from 0) is {}, which {} cannot hold", index, value,
                                           graph::to_string(dtype)));
}

void convert_reals(NpyType type, const std::byte* from, graph::DType dtype, std::span<std::byte> to,
                   std::size_t first) {
  double values[converted_at_once];
  double stored[converted_at_once];
  const std::span<double> part = std::span(values).first(to.size() / graph::element_bytes(dtype));
  read_as(type, from, part);
  device::write_elements(dtype, part, to);
  device::read_elements(dtype, to, std::span(stored).first(part.size()));
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (!std::isfinite(part[i])) {
      throw Error(ErrorCode::data, fmt::format("its element {} (counted from 0) is {}: numbers have to be finite",
                                               first + i, std::isnan(part[i]) ? "NaN" : "infinite"));
    }
    if (!std::isfinite(stored[i])) {
      refuse_element(first + i, fmt::format("{}", part[i]), dtype);
    }
  }
}

template <typename Integer>
void convert_integers(NpyType type, const std::byte* from, graph::DType dtype, std::span<std::byte> to,
                      std::size_t first) {
  std::int64_t values[converted_at_once];
  const std::span<std::int64_t> part = std::span(values).first(to.size() / sizeof(Integer));
  read_as(type, from, part);
  for (std::size_t i = 0; i < part.size(); ++i) {
    const bool is_too_large = type == NpyType::u64 && part[i] < 0;
    if (is_too_large || !std::in_range<Integer>(part[i])) {
      refuse_element(first + i,
                     is_too_large ? fmt::format("{}", static_cast<std::uint64_t>(part[i])) : fmt::format("{}", part[i]),
                     dtype);
    }
    const auto value = static_cast<Integer>(part[i]);
    std::memcpy(to.data() + i * sizeof(Integer), &value, sizeof(Integer));
  }
}

}  // namespace

void convert_elements(NpyType type, std::span<const std::byte> from, graph::DType dtype, std::span<std::byte> to) {
  if (!graph::is_real(dtype) && !is_integer(type)) {
    throw Error(ErrorCode::data, fmt::format("it is {}, and {} numbers are needed: save array.astype('{}')",
                                             to_string(type), graph::to_string(dtype),
                                             dtype == graph::DType::u8    ? "uint8"
                                             : dtype == graph::DType::i32 ? "int32"
                                                                          : "int64"));
  }
  const std::size_t width = graph::element_bytes(dtype);
  for (std::size_t first = 0; first * width < to.size(); first += converted_at_once) {
    const std::span<std::byte> part =
        to.subspan(first * width).first(std::min(converted_at_once * width, to.size() - first * width));
    const std::byte* const stored = from.data() + first * element_bytes(type);
    switch (dtype) {
      case graph::DType::i32: convert_integers<std::int32_t>(type, stored, dtype, part, first); break;
      case graph::DType::i64: convert_integers<std::int64_t>(type, stored, dtype, part, first); break;
      case graph::DType::u8: convert_integers<std::uint8_t>(type, stored, dtype, part, first); break;
      case graph::DType::i8: convert_integers<std::int8_t>(type, stored, dtype, part, first); break;
      default: convert_reals(type, stored, dtype, part, first);
    }
  }
}

bool is_integer(NpyType type) noexcept { return type != NpyType::f16 && type != NpyType::f32 && type != NpyType::f64; }

bool is_signed(NpyType type) noexcept { return type != NpyType::boolean && (type < NpyType::u8 || type > NpyType::u64); }

bool can_be_token(NpyType type) noexcept { return is_integer(type) && type != NpyType::boolean; }

const char* to_string(NpyType type) noexcept {
  switch (type) {
    case NpyType::boolean: return "bool";
    case NpyType::i8: return "int8";
    case NpyType::i16: return "int16";
    case NpyType::i32: return "int32";
    case NpyType::i64: return "int64";
    case NpyType::u8: return "uint8";
    case NpyType::u16: return "uint16";
    case NpyType::u32: return "uint32";
    case NpyType::u64: return "uint64";
    case NpyType::f16: return "float16";
    case NpyType::f32: return "float32";
    case NpyType::f64: return "float64";
  }
  return "";
}

namespace {

NpyHeader header_of(const files::SteadyFile& file) {
  std::vector<std::byte> head(std::min(file.size(), most_header_bytes));
  file.read(0, head);
  return parse_npy(head, file.size(), file.path().native());
}

/// Reads and converts elements, in pieces that fit on the stack.
template <typename To>
void read_converted(const NpyArray& array, std::int64_t first, std::span<To> to) {
  std::array<std::byte, 16384> stored;
  const std::size_t width = element_bytes(array.type());
  while (!to.empty()) {
    const std::span<To> part = to.first(std::min(to.size(), stored.size() / width));
    array.read_bytes(first, std::span(stored).first(part.size() * width));
    read_as(array.type(), stored.data(), part);
    first += static_cast<std::int64_t>(part.size());
    to = to.subspan(part.size());
  }
}

}  // namespace

NpyArray::NpyArray(files::SteadyFile file) : file_(std::move(file)), header_(header_of(file_)) {}

void NpyArray::read_bytes(std::int64_t first, std::span<std::byte> to) const {
  file_.read(header_.data_offset + static_cast<std::size_t>(first) * element_bytes(type()), to);
}

void NpyArray::read(std::int64_t first, std::span<float> to) const {
  if (type() == NpyType::f32) {
    read_bytes(first, std::as_writable_bytes(to));
  } else {
    read_converted(*this, first, to);
  }
}

void NpyArray::read(std::int64_t first, std::span<std::int64_t> to) const { read_converted(*this, first, to); }

}  // namespace shardrun::data
