#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardrun::text {

/// How tokens become text. A token is decoded by itself, except that the first may lose a blank.
struct TokenDecoder {
  bool byte_level = false;                                        ///< a token is in the alphabet of bytes
  bool byte_fallback = false;                                     ///< <0x0A> is a byte
  std::vector<std::pair<std::string, std::string>> replacements;  ///< in order
  std::string dropped_of_first;  ///< a character that the first token loses wherever it has it; empty: none
  std::string separator;         ///< between tokens
  char stripped = ' ';           ///< the text loses up to `strips` of them at its start
  std::int64_t strips = 0;

  /// The bytes of one token. `content`: as in the tokenizer's file.
  [[nodiscard]] std::string decode(std::string_view content, bool is_first) const;
};

}  // namespace shardrun::text
