#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "core/base/error.h"

namespace shardrun::plugins {

/// Copies a C struct that the other side wrote with its own struct_size. Fields that the writer did not know are zero.
/// Fields unknown here are dropped. Throws Error{plugin} if the source is null, smaller than `size_1_0` (its size when
/// it was introduced), or larger than `room`, the bytes until the next struct.
template <class T>
[[nodiscard]] T read_struct(const void* source, std::uint32_t size_1_0, std::string_view what,
                            std::uint32_t room = UINT32_MAX) {
  if (source == nullptr) {
    throw Error(ErrorCode::plugin, fmt::format("{} is a null pointer", what));
  }
  std::uint32_t size = 0;
  std::memcpy(&size, source, sizeof(size));
  if (size < size_1_0 || size > room) {
    throw Error(ErrorCode::plugin, fmt::format("{} has struct_size {}, expected {} or more{}", what, size, size_1_0,
                                               size > room ? fmt::format(" and at most its stride, {}", room) : ""));
  }
  T copy{};
  std::memcpy(&copy, source, std::min<std::size_t>(size, sizeof(T)));
  return copy;
}

/// Copies element `index` of an array with a stride.
template <class T>
[[nodiscard]] T read_element(const void* array, std::uint32_t stride, std::uint32_t index, std::uint32_t size_1_0,
                             std::string_view what) {
  const auto* base = static_cast<const unsigned char*>(array);
  return read_struct<T>(base == nullptr ? nullptr : base + std::size_t{stride} * index, size_1_0, what, stride);
}

}  // namespace shardrun::plugins
