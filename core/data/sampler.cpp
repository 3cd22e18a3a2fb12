#include "core/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>

#include "core/base/error.h"
#include "core/base/philox.h"

namespace shardrun::data {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr std::uint32_t low_word(std::uint64_t value) noexcept { return static_cast<std::uint32_t>(value); }
constexpr std::uint32_t high_word(std::uint64_t value) noexcept { return static_cast<std::uint32_t>(value >> 32U); }

/// The number of rounds. Four suffice for a good permutation of a large domain; domains of a few rows need more.
constexpr std::uint32_t feistel_rounds = 8;

/// A permutation of [0, 2^(2 * half_bits)), chosen by `epoch` and `key`.
std::uint64_t feistel(std::uint64_t value, unsigned half_bits, std::uint64_t epoch, PhiloxKey key) noexcept {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = value >> half_bits;
  std::uint64_t right = value & mask;
  for (std::uint32_t round = 0; round < feistel_rounds; ++round) {
    const std::uint64_t mixed = philox({low_word(right), round, low_word(epoch), high_word(epoch)}, key)[0];
    const std::uint64_t next = left ^ (mixed & mask);
    left = right;
    right = next;
  }
  return (left << half_bits) | right;
}

void fill_row(const Windows& windows, std::int64_t start, std::int64_t row, std::span<std::int32_t> inputs,
              std::span<std::int32_t> targets) {
  if (start < 0 || start + windows.context >= windows.part.size) {
    throw Error(ErrorCode::internal, fmt::format("a window of {} tokens from {} reaches past the {} there are",
                                                 windows.context, start, windows.part.size));
  }
  const auto context = static_cast<std::size_t>(windows.context);
  const std::span<std::int32_t> input = inputs.subspan(static_cast<std::size_t>(row) * context, context);
  const std::span<std::int32_t> target = targets.subspan(static_cast<std::size_t>(row) * context, context);
  // The targets are the inputs shifted by one token. So only the first token and the targets are read; the other inputs
  // are copied from the targets.
  const std::int64_t first = windows.part.first + start;
  windows.stream.read(first, input.first(1));
  windows.stream.read(first + 1, target);
  std::ranges::copy(target.first(context - 1), input.begin() + 1);
}

/// The number of rows in `inputs` and `targets`. Throws Error{internal} if they differ in size or have no whole rows.
std::int64_t rows_of(std::span<std::int32_t> inputs, std::span<std::int32_t> targets, std::int64_t context) {
  const auto size = static_cast<std::int64_t>(inputs.size());
  if (inputs.size() != targets.size() || context <= 0 || size % context != 0) {
    throw Error(ErrorCode::internal, fmt::format("inputs of {} and targets of {} elements are not rows of {} tokens",
                                                 inputs.size(), targets.size(), context));
  }
  return size / context;
}

}  // namespace

std::int64_t window_start(std::uint64_t seed, std::int64_t global_sample, std::int64_t windows) noexcept {
  const auto sample = static_cast<std::uint64_t>(global_sample);
  const PhiloxBlock block = philox({low_word(sample), high_word(sample), 0, 0}, stream_key(seed, "data"));
  const std::uint64_t bits = (static_cast<std::uint64_t>(block[1]) << 32U) | block[0];
  return static_cast<std::int64_t>((static_cast<Wide>(bits) * static_cast<std::uint64_t>(windows)) >> 64U);
}

std::int64_t permuted_sample(std::uint64_t seed, std::int64_t global_sample, std::int64_t count) noexcept {
  const PhiloxKey key = stream_key(seed, "data/permutation");
  const auto rows = static_cast<std::uint64_t>(count);
  const std::uint64_t epoch = static_cast<std::uint64_t>(global_sample) / rows;
  std::uint64_t row = static_cast<std::uint64_t>(global_sample) % rows;
  const auto half_bits = static_cast<unsigned>(std::bit_width(rows - 1) + 1) / 2;
  do {
    row = feistel(row, half_bits, epoch, key);
  } while (row >= rows);
  return static_cast<std::int64_t>(row);
}

std::int64_t training_windows(std::int64_t tokens, std::int64_t context) noexcept { return tokens - context; }

std::int64_t evaluation_windows(std::int64_t tokens, std::int64_t context) noexcept {
  return tokens == 0 ? 0 : (tokens - 1) / context;
}

void fill_samples(const Windows& windows, std::uint64_t seed, std::int64_t first_sample, std::span<std::int32_t> inputs,
                  std::span<std::int32_t> targets) {
  const std::int64_t rows = rows_of(inputs, targets, windows.context);
  const std::int64_t count = training_windows(windows.part.size, windows.context);
  for (std::int64_t row = 0; row < rows; ++row) {
    fill_row(windows, window_start(seed, first_sample + row, count), row, inputs, targets);
  }
  windows.stream.file().require_unchanged();
}

void fill_evaluation(const Windows& windows, std::int64_t first_window, std::span<std::int32_t> inputs,
                     std::span<std::int32_t> targets) {
  const std::int64_t rows = rows_of(inputs, targets, windows.context);
  for (std::int64_t row = 0; row < rows; ++row) {
    fill_row(windows, (first_window + row) * windows.context, row, inputs, targets);
  }
  windows.stream.file().require_unchanged();
}

}  // namespace shardrun::data
