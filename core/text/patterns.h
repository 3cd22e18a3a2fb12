#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace shardrun::text {

/// Matches one regular expression by hand: the end of the match that begins at `at`. Each expression here matches every
/// text without gaps. `classes`: character_classes(). REQUIRES: a character begins at `at`. Takes time linear in the
/// text, over all matches.
using Scanner = std::size_t (*)(std::string_view text, std::size_t at, const unsigned char* classes);

/// The scanner of an expression; nothing for one that is not known.
[[nodiscard]] std::optional<Scanner> scanner_of(std::string_view expression) noexcept;

/// The expression of the pre-tokenizer of a family, by its name: gpt2 (which ByteLevel uses), llama3, qwen2, tekken or
/// o200k.
[[nodiscard]] std::optional<std::string_view> expression_of(std::string_view family) noexcept;

}  // namespace shardrun::text
