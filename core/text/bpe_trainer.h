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

/// Makes a byte-level tokenizer of texts, token for token the one that the BpeTrainer of Python's tokenizers makes:
/// each step merges the pair that is most frequent within words, of equals the one with the lowest left and then right
/// token.
class BpeTrainer {
 public:
  /// `family`: as of expression_of(). `special`: the first tokens, which are cut out of texts. REQUIRES: a known
  /// family.
  BpeTrainer(std::string_view family, std::vector<std::string> special);

  /// Counts a text's words. Throws Error{data} with the place of the first byte that is not UTF-8.
  void add(std::string_view text);

  /// The tokenizer.json. It has fewer tokens than `vocabulary` only if no pair is left. Throws Error{data} for a
  /// vocabulary that does not hold the special tokens and the 256 bytes.
  [[nodiscard]] std::string train(std::int64_t vocabulary) const;

 private:
  std::string family_;
  std::vector<std::string> special_;
  Scanner scanner_;
  AddedTokenFinder finder_;
  std::unordered_map<std::string, std::int64_t, TextHash, std::equal_to<>> words_;
};

}  // namespace shardrun::text
