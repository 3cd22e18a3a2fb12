#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/infer/prompts.h"

namespace shardrun::infer {

/// A sequence of tokens. Those from `from` on are scored by their probabilities, each given the tokens before it.
struct Passage {
  std::vector<std::int32_t> tokens;
  std::int64_t from = 0;  ///< index of the first token that is scored; token 0 has no probability

  /// The number of tokens that are scored and have a probability.
  [[nodiscard]] std::int64_t scored() const noexcept;
};

/// Cuts a text into windows of at most `context` tokens, which begin `stride` tokens apart. Each token is scored once,
/// in the first window that has it. All but the text's first token then have at least one token before them. REQUIRES:
/// 1 <= stride < context.
[[nodiscard]] std::vector<Passage> windows(std::span<const std::int32_t> tokens, std::int64_t context,
                                           std::int64_t stride);

/// A question with several answers to choose from.
struct Question {
  std::vector<Passage> choices;
  std::vector<std::int64_t> characters;  ///< the number of characters of each choice
  std::size_t answer = 0;                ///< the index of the right choice
};

/// Reads a JSON object with `context` (a text), `choices` (two texts or more) and `answer` (the index of the right
/// choice, or its text). Makes tokens as lm-evaluation-harness does (Gao et al. 2021): it encodes context, `delimiter`
/// and choice together, and spaces at the end of the context belong to the choice. A passage that is longer than
/// `context` tokens loses its beginning. Throws Error{data}, with the key that is wrong.
[[nodiscard]] Question read_question(std::string_view line, const Language& language, std::string_view delimiter,
                                     std::int64_t context);

/// The line of a file of prompts (see read_prompt()) that asks for a passage's scores, but for no answer.
[[nodiscard]] std::string prompt_line(const Passage& passage);
/// The sum of the natural logarithms of the probabilities in the answer to that line.
[[nodiscard]] double log_likelihood(std::string_view answer);

/// The index of the greatest score, and the first of equal ones. REQUIRES: there is one.
[[nodiscard]] std::size_t best(std::span<const double> scores);

}  // namespace shardrun::infer
