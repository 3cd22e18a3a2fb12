#pragma once

#include <filesystem>
#include <string>

namespace shardrun::data {

/// What tells a file from another one of that name: "1115394 bytes, hash 9d2c5681a3b0c7f4". The hash is of all bytes up
/// to 64 MiB, and of a larger file of a page at each of as many even distances. Throws Error{data, io} as MappedFile.
[[nodiscard]] std::string fingerprint(const std::filesystem::path& path);

}  // namespace shardrun::data
