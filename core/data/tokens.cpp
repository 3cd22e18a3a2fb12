#include "core/data/tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "core/base/error.h"
#include "core/data/split.h"

namespace shardrun::data {

static_assert(std::endian::native == std::endian::little, "token files are mapped as they are");

TokenStream::TokenStream(std::vector<std::uint16_t> tokens, std::string source)
    : owned_(std::move(tokens)), source_(std::move(source)) {
  if (owned_.empty()) {
    throw Error(ErrorCode::data, fmt::format("'{}' is empty: it has no tokens", source_));
  }
}

TokenStream TokenStream::map(const std::filesystem::path& path) {
  files::MappedFile file(path);
  const std::size_t bytes = file.bytes().size();
  if (bytes == 0) {
    throw Error(ErrorCode::data, fmt::format("'{}' is empty: it has no tokens", path.native()));
  }
  if (bytes % 2 != 0) {
    throw Error(ErrorCode::data, fmt::format("'{}' has {} bytes, an odd number: expected tokens of 2 bytes each "
                                             "(little-endian uint16); it is cut short or something else",
                                             path.native(), bytes));
  }
  return TokenStream(std::move(file));
}

std::span<const std::uint16_t> TokenStream::tokens() const noexcept {
  if (!mapped_) {
    return owned_;
  }
  const std::span<const std::byte> bytes = mapped_->bytes();
  return {reinterpret_cast<const std::uint16_t*>(bytes.data()), bytes.size() / 2};
}

namespace {

std::vector<std::uint16_t> encode_file(const files::MappedFile& file, const Tokenizer& tokenizer) {
  try {
    return tokenizer.encode(file.text());
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("'{}': {}", file.path().native(), error.message()));
  }
}

}  // namespace

TokenizedText read_text(const std::filesystem::path& path, TokenizerKind kind) {
  const files::MappedFile file(path);
  Tokenizer tokenizer = make_tokenizer(kind, file.text(), fmt::format("'{}'", path.native()));
  TokenStream stream(encode_file(file, tokenizer), path.native());
  return {std::move(tokenizer), std::move(stream)};
}

TokenStream read_text(const std::filesystem::path& path, const Tokenizer& tokenizer) {
  return {encode_file(files::MappedFile(path), tokenizer), path.native()};
}

TokenSplit split_tokens(const TokenStream& stream, double fraction) {
  const auto training = static_cast<std::size_t>(training_count(stream.size(), fraction, stream.source()));
  return {stream.tokens().first(training), stream.tokens().subspan(training)};
}

void require_context(std::span<const std::uint16_t> tokens, std::int64_t context, std::string_view part,
                     std::string_view remedy) {
  if (static_cast<std::int64_t>(tokens.size()) <= context) {
    throw Error(ErrorCode::data,
                fmt::format("{} has {} tokens, a context of {} needs at least {}: give more text, or a "
                            "smaller [model] context{}",
                            part, tokens.size(), context, context + 1, remedy));
  }
}

void require_vocabulary(const TokenStream& stream, std::int64_t vocabulary) {
  const std::span<const std::uint16_t> tokens = stream.tokens();
  const auto bad = std::find_if(tokens.begin(), tokens.end(), [&](std::uint16_t token) { return token >= vocabulary; });
  if (bad != tokens.end()) {
    throw Error(ErrorCode::data,
                fmt::format("'{}': token {} at position {} is not below the model's vocabulary of {}; set "
                            "[model] vocab to the vocabulary that the tokens were made with",
                            stream.source(), *bad, bad - tokens.begin(), vocabulary));
  }
}

}  // namespace shardrun::data
