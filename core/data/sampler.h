#pragma once

#include <cstdint>
#include <span>

#include "core/data/tokens.h"

namespace shardrun::data {

// The order of the data is a pure function of the job's seed and the global sample index, which is step * batch +
// position within the step. It is the same for every number of ranks and microbatches, and a resumed run continues in
// it.

/// The first token of a sample's window: uniform over [0, windows), with replacement. Probabilities deviate from
/// uniform by less than windows / 2^64. REQUIRES: windows > 0.
[[nodiscard]] std::int64_t window_start(std::uint64_t seed, std::int64_t global_sample, std::int64_t windows) noexcept;

/// The row of a sample, among `count` rows. Each epoch of `count` samples visits every row once, in an order of its
/// own. A Feistel network over Philox, cycle-walked into the range: Black and Rogaway 2002, "Ciphers with arbitrary
/// finite domains", sections 3 and 4. REQUIRES: count > 0.
[[nodiscard]] std::int64_t permuted_sample(std::uint64_t seed, std::int64_t global_sample, std::int64_t count) noexcept;

/// The number of window starts in `tokens` tokens such that the token after each window exists: tokens - context, as in
/// nanoGPT.
[[nodiscard]] std::int64_t training_windows(std::int64_t tokens, std::int64_t context) noexcept;
/// The number of adjacent windows without overlap, such that the token after the last exists: (tokens - 1) / context.
[[nodiscard]] std::int64_t evaluation_windows(std::int64_t tokens, std::int64_t context) noexcept;

/// Windows in a part of a stream. The stream must outlive this object.
struct Windows {
  const TokenStream& stream;
  TokenRange part;
  std::int64_t context = 0;  ///< tokens of a window
};

// The following write a row of `context` tokens per window: inputs[row][i] is token start + i of the part, and
// targets[row][i] token start + i + 1. Both outputs hold rows * context elements. They allocate nothing. They throw
// Error{internal} if the outputs have another size or a window reaches past the part, Error{io} if the file has
// changed, and as TokenStream::read does.

/// Fills the rows of global samples first_sample, first_sample + 1, …, as many as the outputs hold.
void fill_samples(const Windows& windows, std::uint64_t seed, std::int64_t first_sample, std::span<std::int32_t> inputs,
                  std::span<std::int32_t> targets);
/// Fills the evaluation windows first_window, first_window + 1, …, as many as the outputs hold.
void fill_evaluation(const Windows& windows, std::int64_t first_window, std::span<std::int32_t> inputs,
                     std::span<std::int32_t> targets);

}  // namespace shardrun::data
