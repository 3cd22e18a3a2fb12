#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace shardrun::data {

/// Formats that [data] reads, or that people give instead of one that it reads.
enum class FileFormat : std::uint8_t { unknown, npy, zip, gzip, safetensors };

/// The format of a file that begins with `head`. A safetensors file is known by its first 16 bytes, the others by less.
[[nodiscard]] FileFormat format_of(std::span<const std::byte> head) noexcept;

/// "a .npy file"; empty for an unknown format.
[[nodiscard]] const char* to_string(FileFormat format) noexcept;

}  // namespace shardrun::data
