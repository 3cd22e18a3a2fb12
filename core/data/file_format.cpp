#include "core/data/file_format.h"

#include <algorithm>
#include <string_view>

namespace shardrun::data {
namespace {

/// Whether a file begins like a safetensors file: 8 bytes with the length of its JSON header (little-endian), and JSON.
bool is_safetensors(std::string_view head) {
  const auto is_printable = [](char c) { return c >= ' ' && c <= '~'; };
  return head.size() >= 16 && head.substr(4, 6) == std::string_view("\0\0\0\0{\"", 6) &&
         std::ranges::all_of(head.substr(8, 8), is_printable);
}

}  // namespace

FileFormat format_of(std::span<const std::byte> head) noexcept {
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  if (text.starts_with("\x93NUMPY")) {
    return FileFormat::npy;
  }
  if (text.starts_with("PK\x03\x04") || text.starts_with("PK\x05\x06")) {
    return FileFormat::zip;
  }
  if (text.starts_with("\x1f\x8b\x08")) {
    return FileFormat::gzip;
  }
  return is_safetensors(text) ? FileFormat::safetensors : FileFormat::unknown;
}

const char* to_string(FileFormat format) noexcept {
  switch (format) {
    case FileFormat::unknown: return "";
    case FileFormat::npy: return "a .npy file";
    case FileFormat::zip: return "a zip archive";
    case FileFormat::gzip: return "a gzip file";
    case FileFormat::safetensors: return "a safetensors file";
  }
  return "";
}

}  // namespace shardrun::data
