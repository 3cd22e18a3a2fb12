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

/// The expression of GPT-2, which the pre-tokenizer ByteLevel uses.
extern const std::string_view gpt2_expression;

}  // namespace shardrun::text
