#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace shardrun::files {

/// A whole regular file of UTF-8 without NUL. Throws Error{data} where it is none, or has more bytes than `most`;
/// Error{io} where the system refuses.
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path, std::size_t most);

}  // namespace shardrun::files
