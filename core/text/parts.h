#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text/added_tokens.h"
#include "core/text/byte_pairs.h"
#include "core/text/patterns.h"

namespace shardrun::text {

/// A step of normalization.
struct NormalizerStep {
  enum class Kind : std::uint8_t { nfc, prepend, replace };
  Kind kind = Kind::nfc;
  std::string from;  ///< for replace: the text to replace
  std::string to;    ///< for replace: the new text; for prepend: the text put before a text that is not empty
};

/// A step of the pre-tokenizer. It cuts a piece of text into smaller pieces, or changes it.
struct SplitStep {
  enum class Kind : std::uint8_t {
    scan,          ///< cuts into the matches of `scanner`
    digits,        ///< cuts out each numeric character
    digit_runs,    ///< cuts between numeric and other characters
    behind,        ///< cuts after each `mark`
    around,        ///< cuts before and after each `mark`
    prefix_blank,  ///< puts a blank before a piece that does not begin with one
    marks,         ///< replaces blanks by `mark`, and puts it before the piece as `prepends` says
    before_marks,  ///< does what `marks` does, then cuts before each `mark`
  };
  enum class Prepends : std::uint8_t { never, first, always };
  Kind kind = Kind::scan;
  Scanner scanner = nullptr;
  std::string mark;
  Prepends prepends = Prepends::never;
};

/// How tokens become text. Tokens are decoded independently of each other, except for what is removed at the start.
struct TokenDecoder {
  bool byte_level = false;     ///< tokens are written in the byte-level alphabet of GPT-2
  bool byte_fallback = false;  ///< a token <0x0A> is the byte 0x0A
  std::vector<std::pair<std::string, std::string>> replacements;  ///< pairs from, to; applied in order
  std::string dropped_of_first;  ///< a character whose every occurrence is removed from the first token; empty: none
  std::string separator;         ///< put between tokens
  char stripped = ' ';           ///< the text loses up to `strips` of this character at its start
  std::int64_t strips = 0;

  /// The bytes of one token. `content`: the token's text in the tokenizer's file.
  [[nodiscard]] std::string decode(std::string_view content, bool is_first) const;
};

/// The content of a tokenizer.json.
struct Parts {
  std::string json;
  std::vector<std::string> contents;  ///< the text of each token, by its id
  TokenIds ids;                       ///< the id of each token, by its text
  BytePairs model;
  std::vector<NormalizerStep> normalizer;
  std::vector<SplitStep> splits;
  TokenDecoder decoder;
  AddedTokenFinder raw_tokens;         ///< tokens to find before normalization
  AddedTokenFinder normalized_tokens;  ///< tokens to find after normalization
  std::vector<bool> is_special;
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> behind;
};

/// Appends `text` to `result`, with every `from` replaced by `to`. REQUIRES: `result` is none of the other texts.
void append_replaced(std::string_view text, std::string_view from, std::string_view to, std::string& result);

/// Returns `text` if there are no steps, or else `scratch` with the normalized text. Throws Error{data} if it is huge.
[[nodiscard]] std::string_view normalized(const std::vector<NormalizerStep>& steps, std::string_view text,
                                          std::string& scratch);

}  // namespace shardrun::text
