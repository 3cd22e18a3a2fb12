#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace shardrun::files {

/// The contents of a regular file that is UTF-8 without NUL. Throws Error{data} if it is not, or has more than `most`
/// bytes; Error{io} if the system refuses.
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path, std::size_t most);

}  // namespace shardrun::files
