#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace shardrun::data {

/// Formats that [data] reads, or that users pass by mistake.
enum class FileFormat : std::uint8_t { unknown, npy, zip, gzip, safetensors };

/// The format of a file that begins with `head`. 16 bytes are enough for every format.
[[nodiscard]] FileFormat format_of(std::span<const std::byte> head) noexcept;

/// A name for messages: "a .npy file"; empty for an unknown format.
[[nodiscard]] const char* to_string(FileFormat format) noexcept;

}  // namespace shardrun::data
