#include "core/data/npy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace shardrun::data {
namespace {

template <typename From, typename To>
void convert(const std::byte* from, std::span<To> to) {
  for (To& value : to) {
    From stored;
    std::memcpy(&stored, from, sizeof stored);
    value = static_cast<To>(stored);
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
    case NpyType::u16: return 2;
    case NpyType::i32:
    case NpyType::u32:
    case NpyType::f32: return 4;
    case NpyType::i64:
    case NpyType::u64:
    case NpyType::f64: return 8;
  }
  return 0;
}

void read_elements(NpyType type, std::span<const std::byte> from, std::span<float> to) {
  read_as(type, from.data(), to);
}

bool is_integer(NpyType type) noexcept { return type != NpyType::f32 && type != NpyType::f64; }

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

/// A piece at a time, on the stack.
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
