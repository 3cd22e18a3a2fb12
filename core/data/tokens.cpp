#include "core/data/tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/data/split.h"

namespace shardrun::data {

static_assert(std::endian::native == std::endian::little, "tokens are used as they are stored");

TokenStream::TokenStream(files::SteadyFile file, TokenLayout layout) : file_(std::move(file)), layout_(layout) {}

TokenStream TokenStream::of_file(files::SteadyFile file, std::int64_t vocabulary, std::size_t token_bytes) {
  const std::size_t bytes = file.size();
  if (bytes == 0) {
    throw Error(ErrorCode::data, fmt::format("'{}' is empty: it has no tokens", file.path().native()));
  }
  if (bytes % token_bytes != 0) {
    throw Error(ErrorCode::data,
                fmt::format("'{}' has {} bytes, not a multiple of {}: expected tokens of {} bytes each "
                            "(little-endian uint{}, [data] token_type); it is cut short or something "
                            "else",
                            file.path().native(), bytes, token_bytes, token_bytes, 8 * token_bytes));
  }
  return {
      std::move(file),
      {.tokens = static_cast<std::int64_t>(bytes / token_bytes), .token_bytes = token_bytes, .vocabulary = vocabulary}};
}

template <typename Token>
void TokenStream::read_as(std::int64_t first, std::span<std::int32_t> to) const {
  std::array<Token, 8192 / sizeof(Token)> stored;
  while (!to.empty()) {
    const std::span<Token> part = std::span(stored).first(std::min(to.size(), stored.size()));
    file_.read(layout_.begin + static_cast<std::size_t>(first) * sizeof(Token), std::as_writable_bytes(part));
    Token largest = 0;
    for (std::size_t i = 0; i < part.size(); ++i) {
      to[i] = static_cast<std::int32_t>(part[i]);
      largest = std::max(largest, part[i]);
    }
    if (largest >= layout_.vocabulary) {
      file_.require_unchanged();
      const auto bad = std::ranges::find_if(part, [&](Token token) { return token >= layout_.vocabulary; });
      throw Error(ErrorCode::data,
                  fmt::format("'{}': token {} at position {} is not below the model's vocabulary of {}; set "
                              "[model] vocab to the vocabulary that the tokens were made with",
                              source(), *bad, first + (bad - part.begin()), layout_.vocabulary));
    }
    first += static_cast<std::int64_t>(part.size());
    to = to.subspan(part.size());
  }
}

void TokenStream::read(std::int64_t first, std::span<std::int32_t> to) const {
  switch (layout_.token_bytes) {
    case 1: read_as<std::uint8_t>(first, to); break;
    case 2: read_as<std::uint16_t>(first, to); break;
    default: read_as<std::uint32_t>(first, to); break;
  }
}

TokenSplit split_tokens(std::int64_t tokens, double fraction, std::string_view source) {
  const std::int64_t training = training_count(tokens, fraction, source);
  return {.training = {0, training}, .validation = {training, tokens - training}};
}

void require_context(std::int64_t tokens, std::int64_t context, std::string_view part, std::string_view remedy) {
  if (tokens <= context) {
    throw Error(ErrorCode::data,
                fmt::format("{} has {} tokens, a context of {} needs at least {}: give more text, or a "
                            "smaller [model] context{}",
                            part, tokens, context, context + 1, remedy));
  }
}

void require_tokens(const TokenStream& stream) {
  std::vector<std::int32_t> tokens(std::size_t{1} << 16U);
  for (std::int64_t first = 0; first < stream.size(); first += static_cast<std::int64_t>(tokens.size())) {
    stop_point();
    const auto count = static_cast<std::size_t>(
        std::min<std::int64_t>(static_cast<std::int64_t>(tokens.size()), stream.size() - first));
    stream.read(first, std::span(tokens).first(count));
  }
}

}  // namespace shardrun::data
