#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace shardrun::text {

/// A hand-written matcher of one regular expression. Returns the end of the match that begins at `at`; there always is
/// one, because the expressions match every text without gaps. `classes`: character_classes(). All matches of a text
/// together take linear time. REQUIRES: a character begins at `at`.
using Scanner = std::size_t (*)(std::string_view text, std::size_t at, const unsigned char* classes);

/// The scanner for a regular expression; nothing if the expression is not supported.
[[nodiscard]] std::optional<Scanner> scanner_of(std::string_view expression) noexcept;

/// The regular expression of a family's pre-tokenizer. Families: gpt2 (which ByteLevel uses), llama3, qwen2, tekken,
/// o200k. Nothing for other names.
[[nodiscard]] std::optional<std::string_view> expression_of(std::string_view family) noexcept;

}  // namespace shardrun::text
