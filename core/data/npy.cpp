#include "core/data/npy.h"

#include <cstring>

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

NpyArray::NpyArray(const std::filesystem::path& path)
    : file_(path), header_(parse_npy(file_.bytes(), file_.path().native())) {}

void NpyArray::read(std::int64_t first, std::span<float> to) const {
  read_as(type(), values().data() + static_cast<std::size_t>(first) * element_bytes(type()), to);
}

void NpyArray::read(std::int64_t first, std::span<std::int64_t> to) const {
  read_as(type(), values().data() + static_cast<std::size_t>(first) * element_bytes(type()), to);
}

}  // namespace shardrun::data
