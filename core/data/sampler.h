#pragma once

#include <cstdint>
#include <span>

#include "core/data/tokens.h"

namespace shardrun::data {

// The order of the data is a pure function of the job's seed and the global sample index, step * batch + position
// within the step: it is the same for every number of ranks and microbatches, and a resumed run goes on where it was.

/// Where the window of a sample starts: uniform over [0, windows), with replacement.
/// REQUIRES: windows > 0. A start is off uniform by less than windows / 2^64.
[[nodiscard]] std::int64_t window_start(std::uint64_t seed, std::int64_t global_sample, std::int64_t windows) noexcept;

/// Which of `count` rows a sample is: each epoch of `count` samples visits every row once, in an order of its own.
/// REQUIRES: count > 0. A Feistel network over Philox, cycle-walked into the range: Black and Rogaway 2002, "Ciphers
/// with arbitrary finite domains", sections 3 and 4.
[[nodiscard]] std::int64_t permuted_sample(std::uint64_t seed, std::int64_t global_sample, std::int64_t count) noexcept;

/// How many windows start in so many tokens so that the token after each exists: tokens - context, as nanoGPT has it.
[[nodiscard]] std::int64_t training_windows(std::int64_t tokens, std::int64_t context) noexcept;
/// How many windows lie side by side, none overlapping, the token after the last included: (tokens - 1) / context.
[[nodiscard]] std::int64_t evaluation_windows(std::int64_t tokens, std::int64_t context) noexcept;

/// A part of a stream, which must outlive it, and windows of it.
struct Windows {
  const TokenStream& stream;
  TokenRange part;
  std::int64_t context = 0;  ///< tokens of a window
};

// The fills below write a row of `context` tokens for each window: inputs[row][i] is token start + i of the part and
// targets[row][i] token start + i + 1. Both outputs hold rows * context elements. They allocate nothing.
// Throw Error{internal} where the outputs are not of that size or a window reaches past the part; as TokenStream::read;
// and Error{io} where the file has changed.

/// One row a start.
void fill_tokens(const Windows& windows, std::span<const std::int64_t> starts, std::span<std::int32_t> inputs,
                 std::span<std::int32_t> targets);
/// The rows of global samples first_sample, first_sample + 1, …, as many as the outputs hold.
void fill_samples(const Windows& windows, std::uint64_t seed, std::int64_t first_sample, std::span<std::int32_t> inputs,
                  std::span<std::int32_t> targets);
/// The evaluation windows first_window, first_window + 1, …, as many as the outputs hold.
void fill_evaluation(const Windows& windows, std::int64_t first_window, std::span<std::int32_t> inputs,
                     std::span<std::int32_t> targets);

}  // namespace shardrun::data
