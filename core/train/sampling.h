#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/data/tokenizer.h"
#include "core/runtime/executor.h"

namespace shardrun::train {

struct SamplingSettings {
  std::int64_t tokens = 200;
  double temperature = 1.0;  ///< 0: always the likeliest token
  std::int64_t top_k = 0;    ///< draw only from the k likeliest tokens; 0: all
  std::uint64_t seed = 1337;
  std::int64_t vocabulary = 0;         ///< draw only from this many first tokens, which have a text; 0: all
  std::function<bool()> goes_on = {};  ///< called before each token; false ends the sampling; empty: sample to the end
};

/// Draws a token from the softmax of logits / temperature over the `top_k` largest. `random` is uniform in [0, 1).
[[nodiscard]] std::int32_t draw_token(std::span<const float> logits, const SamplingSettings& settings, double random);

/// The tokens with which a sample without a prompt starts: a line's end if the text has lines, else its first
/// character.
[[nodiscard]] std::vector<std::int32_t> first_tokens(const data::Tokenizer& tokenizer);

/// Continues `tokens` one by one with the program `predict`. Once the context is full, it slides. `emit` gets each new
/// token as it is drawn. Random draws are keyed by (seed, "sample", number of the token).
void sample(runtime::Executor& executor, std::vector<std::int32_t> tokens, const SamplingSettings& settings,
            const std::function<void(std::int32_t)>& emit);

}  // namespace shardrun::train
