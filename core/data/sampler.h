#pragma once

#include <cstdint>
#include <span>

#include "core/data/tokens.h"

namespace shardrun::data {

// The order of samples depends only on the job's seed and the global sample index, which is step * batch + position in
// the batch. So it is the same for any number of ranks and microbatches, and a resumed run continues it.

/// The index of the first token of a sample's window: uniform over [0, windows), with replacement. Probabilities
/// deviate from uniform by less than windows / 2^64. REQUIRES: windows > 0.
[[nodiscard]] std::int64_t window_start(std::uint64_t seed, std::int64_t global_sample, std::int64_t windows) noexcept;

/// The row of a sample, in [0, count). Each epoch of `count` samples visits every row once, in a different order. Uses
/// a Feistel network over Philox with cycle walking: Black and Rogaway 2002, "Ciphers with arbitrary finite domains",
/// sections 3 and 4. REQUIRES: count > 0.
[[nodiscard]] std::int64_t permuted_sample(std::uint64_t seed, std::int64_t global_sample, std::int64_t count) noexcept;

/// The number of places at which a training window can start in `tokens` tokens: tokens - context, as in nanoGPT,
/// because a target follows the window's last token.
[[nodiscard]] std::int64_t training_windows(std::int64_t tokens, std::int64_t context) noexcept;
/// The number of evaluation windows, which do not overlap: (tokens - 1) / context, because a target follows the
/// last one.
[[nodiscard]] std::int64_t evaluation_windows(std::int64_t tokens, std::int64_t context) noexcept;

/// Windows over a range of a token stream. The stream must outlive this object.
struct Windows {
  const TokenStream& stream;
  TokenRange part;
  std::int64_t context = 0;  ///< tokens per window
};

// These functions write one row of `context` tokens per window: inputs[row][i] is token start + i of the part, and
// targets[row][i] is token start + i + 1. Both outputs have rows * context elements. They allocate nothing. They throw
// Error{internal} if the outputs have other sizes or a window exceeds the part, Error{io} if the file has changed, and
// as TokenStream::read() does.

/// Fills the outputs with the windows of the global samples first_sample, first_sample + 1 and so on.
void fill_samples(const Windows& windows, std::uint64_t seed, std::int64_t first_sample, std::span<std::int32_t> inputs,
                  std::span<std::int32_t> targets);
/// Fills the outputs with the evaluation windows first_window, first_window + 1 and so on.
void fill_evaluation(const Windows& windows, std::int64_t first_window, std::span<std::int32_t> inputs,
                     std::span<std::int32_t> targets);

}  // namespace shardrun::data
