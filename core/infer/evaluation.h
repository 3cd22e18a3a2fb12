#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/infer/prompts.h"

namespace shardrun::infer {

/// Tokens whose probabilities are asked for, each given those before it.
struct Passage {
  std::vector<std::int32_t> tokens;
  std::int64_t from = 0;  ///< the first token that is asked for; a passage's very first token has no probability

  /// How many tokens have a probability that is asked for.
  [[nodiscard]] std::int64_t scored() const noexcept;
};

/// Cuts a text into windows of at most `context` tokens, which begin `stride` tokens apart. Each token is asked for
/// once, in the first window that has it, and only the text's first token has none before it. REQUIRES: 1 <= stride <
/// context.
[[nodiscard]] std::vector<Passage> windows(std::span<const std::int32_t> tokens, std::int64_t context,
                                           std::int64_t stride);

/// A question with several answers to choose from.
struct Question {
  std::vector<Passage> choices;
  std::vector<std::int64_t> characters;  ///< of each choice
  std::size_t answer = 0;                ///< the index of the right choice
};

/// Reads a JSON object with `context` (a text), `choices` (two texts or more) and `answer` (the index of the right
/// choice, or its text). Tokens are cut as lm-evaluation-harness does (Gao et al. 2021): context, `delimiter` and
/// choice become tokens together; spaces at the end of the context belong to the choice. A passage that is longer than
/// `context` tokens loses its beginning. Throws Error{data}, which names the key.
[[nodiscard]] Question read_question(std::string_view line, const Language& language, std::string_view delimiter,
                                     std::int64_t context);

/// A passage as a line of a file of prompts, see read_prompt().
[[nodiscard]] std::string prompt_line(const Passage& passage);
/// The sum of the logarithms of the probabilities in the answer to that line.
[[nodiscard]] double log_likelihood(std::string_view answer);

/// The choice with the greatest score; the first of equal ones.
[[nodiscard]] std::size_t best(std::span<const double> scores);

}  // namespace shardrun::infer
