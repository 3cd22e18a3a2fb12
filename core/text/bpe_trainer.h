#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/text/added_tokens.h"
#include "core/text/byte_pairs.h"
#include "core/text/patterns.h"

namespace shardrun::text {

/// Trains a byte-level BPE tokenizer, with the same tokens as BpeTrainer of Python's tokenizers. Each step merges the
/// pair that is most frequent within words; of equally frequent pairs, the one with the lowest ids (left, then right).
class BpeTrainer {
 public:
  /// `family`: selects the expression that cuts texts into words, by expression_of(). `special`: the first tokens of
  /// the vocabulary, which are cut out of texts. REQUIRES: a known family.
  BpeTrainer(std::string_view family, std::vector<std::string> special);

  /// Counts the words of a text. Throws Error{data} with the offset of the first byte that is not UTF-8.
  void add(std::string_view text);

  /// Returns the text of a tokenizer.json. It has fewer tokens than `vocabulary` only if no pair is left to merge.
  /// Throws Error{data} if a special token is invalid, or if `vocabulary` is too small for these and the 256 bytes.
  [[nodiscard]] std::string train(std::int64_t vocabulary) const;

 private:
  std::string family_;
  std::vector<std::string> special_;
  Scanner scanner_;
  AddedTokenFinder finder_;
  std::unordered_map<std::string, std::int64_t, TextHash, std::equal_to<>> words_;
};

}  // namespace shardrun::text
