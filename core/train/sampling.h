#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/runtime/executor.h"

namespace shardrun::train {

struct SamplingSettings {
  std::int64_t tokens = 200;
  double temperature = 1.0;  ///< 0: the likeliest token each time
  std::int64_t top_k = 0;    ///< draw from the likeliest k only; 0: from all
  std::uint64_t seed = 1337;
  std::int64_t vocabulary = 0;         ///< draw from the first so many tokens, those that have a text; 0: from all
  std::function<bool()> goes_on = {};  ///< asked before each token; empty: it does
};

/// Draws a token from logits: softmax of logits / temperature over the `top_k` largest. `random` is uniform in [0, 1).
[[nodiscard]] std::int32_t draw_token(std::span<const float> logits, const SamplingSettings& settings, double random);

/// Continues `tokens` one by one by the program `predict`; the context slides once it is full. Each new token is handed
/// to `emit` as it is drawn. The draws are keyed by (seed, "sample", number of the token).
void sample(runtime::Executor& executor, std::vector<std::int32_t> tokens, const SamplingSettings& settings,
            const std::function<void(std::int32_t)>& emit);

}  // namespace shardrun::train
