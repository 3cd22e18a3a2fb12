#pragma once

#include <string_view>

namespace shardrun::plugins {

/// Whether the whole of `text` fits the pattern: `*` is any run of characters, `?` any one, all else itself.
[[nodiscard]] bool glob_matches(std::string_view pattern, std::string_view text) noexcept;

}  // namespace shardrun::plugins
