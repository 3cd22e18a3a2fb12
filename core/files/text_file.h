#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace shardrun::files {

/// The content of a regular file, which must be UTF-8 without NUL. Throws Error{data} if it is not, or if it has more
/// than `most` bytes; Error{io} if the system cannot read it.
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path, std::size_t most);

}  // namespace shardrun::files
