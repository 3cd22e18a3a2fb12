#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardrun::text {

/// How tokens become text. Each token is decoded independently; only the first one may lose characters.
struct TokenDecoder {
  bool byte_level = false;     ///< tokens are written in the byte-level alphabet of GPT-2
  bool byte_fallback = false;  ///< a token <0x0A> is the byte 0x0A
  std::vector<std::pair<std::string, std::string>> replacements;  ///< pairs from, to; applied in order
  std::string dropped_of_first;  ///< a character that is removed from the first token wherever it occurs; empty: none
  std::string separator;         ///< put between tokens
  char stripped = ' ';           ///< the text loses up to `strips` of this character at its start
  std::int64_t strips = 0;

  /// The bytes of one token. `content`: the token's text in the tokenizer's file.
  [[nodiscard]] std::string decode(std::string_view content, bool is_first) const;
};

}  // namespace shardrun::text
