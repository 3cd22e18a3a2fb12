#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "core/data/tokenizer.h"
#include "core/runtime/executor.h"

namespace shardrun::infer {

/// How a token is drawn from logits. Settings act in the order in which they stand here, as in transformers.
struct Sampling {
  double repetition = 1;   ///< logits of tokens seen before are divided by this if positive, else multiplied
  double frequency = 0;    ///< subtracted from a token's logit for each time that it was drawn
  double presence = 0;     ///< subtracted from the logit of each token that was drawn
  double temperature = 1;  ///< divides the logits; 0: always the likeliest token
  std::int64_t top_k = 0;  ///< draw only from the k likeliest tokens; 0: all
  double top_p = 1;        ///< draw only from the fewest likeliest tokens that together have this probability
  double min_p = 0;        ///< draw only from tokens with at least this share of the highest probability
  std::uint64_t seed = 1337;
  std::int64_t vocabulary = 0;  ///< draw only from this many first tokens, which have a text; 0: all
};

/// A sequence: its prompt, then the tokens that were drawn.
struct Sequence {
  std::span<const std::int32_t> tokens;
  std::size_t prompted = 0;  ///< the number of tokens of the prompt
};

/// Draws the next token of a sequence. `random` is uniform in [0, 1). Throws Error{data} for a logit of NaN or +inf.
[[nodiscard]] std::int32_t draw_token(std::span<const float> logits, const Sampling& how, const Sequence& sequence,
                                      double random);
/// The same with the random number that belongs to (how.seed, number of tokens drawn).
[[nodiscard]] std::int32_t draw_token(std::span<const float> logits, const Sampling& how, const Sequence& sequence);

/// The natural logarithm of the probability of a token.
[[nodiscard]] double log_probability(std::span<const float> logits, std::int32_t token);

/// Tokens with the logarithms of their probabilities.
using Likely = std::vector<std::pair<std::int32_t, double>>;
/// The `count` likeliest of the first `vocabulary` tokens (0: of all), the likeliest first; of equal ones, the one with
/// the lower number.
[[nodiscard]] Likely likeliest(std::span<const float> logits, std::int64_t count, std::int64_t vocabulary);

/// The token with which a sample without a prompt starts. It is the first token of "\n", or token 0 if the tokenizer
/// has none for it.
[[nodiscard]] std::vector<std::int32_t> first_tokens(const data::Tokenizer& tokenizer);

/// Continues `tokens` by `count` more with the program `predict`. Once the context is full, it slides. `emit` gets each
/// new token. `goes_on` is called before each; false ends the sampling. Throws Error{usage} if `tokens` is empty.
void sample(runtime::Executor& executor, std::vector<std::int32_t> tokens, std::int64_t count, const Sampling& how,
            const std::function<bool()>& goes_on, const std::function<void(std::int32_t)>& emit);

}  // namespace shardrun::infer
