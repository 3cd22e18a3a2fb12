#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/text/added_tokens.h"
#include "core/text/byte_pairs.h"
#include "core/text/patterns.h"
#include "core/text/token_decoder.h"

namespace shardrun::text {

/// A step of normalization.
struct NormalizerStep {
  enum class Kind : std::uint8_t { nfc, prepend, replace };
  Kind kind = Kind::nfc;
  std::string from;  ///< of replace
  std::string to;    ///< of replace; of prepend what is put before a text that is not empty
};

/// A step that cuts a text into pieces, or changes each.
struct SplitStep {
  enum class Kind : std::uint8_t {
    scan,          ///< into the matches of an expression
    digits,        ///< each numeric character by itself
    digit_runs,    ///< numeric characters from others
    behind,        ///< behind each `mark`
    around,        ///< before and behind each `mark`
    prefix_blank,  ///< puts a blank before a piece that has none
    marks,         ///< blanks become `mark`, which is put before the piece as `prepends` says
    before_marks,  ///< the same, and then cut before each `mark`
  };
  enum class Prepends : std::uint8_t { never, first, always };
  Kind kind = Kind::scan;
  Scanner scanner = nullptr;
  std::string mark;
  Prepends prepends = Prepends::never;
};

/// All that a tokenizer.json says.
struct Parts {
  std::string json;
  std::vector<std::string> contents;  ///< of every token
  TokenIds ids;                       ///< of every token, by its content
  BytePairs model;
  std::vector<NormalizerStep> normalizer;
  std::vector<SplitStep> splits;
  TokenDecoder decoder;
  AddedTokenFinder raw_tokens;         ///< found before normalization
  AddedTokenFinder normalized_tokens;  ///< and after it
  std::vector<bool> is_special;
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> behind;
};

/// Returns what normalization makes of a text: the text itself, or `scratch`, which holds it.
[[nodiscard]] std::string_view normalized(const std::vector<NormalizerStep>& steps, std::string_view text,
                                          std::string& scratch);

}  // namespace shardrun::text
