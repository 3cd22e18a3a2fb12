#include "core/data/tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/data/file_format.h"
#include "core/data/npy.h"
#include "core/data/split.h"

namespace shardrun::data {

static_assert(std::endian::native == std::endian::little, "tokens are used as they are stored");

namespace {

/// The number of bytes that format_of() needs to know every format.
constexpr std::size_t format_bytes = 16;
constexpr std::size_t most_judged_tokens = 512;
constexpr std::size_t least_judged_tokens = 64;

/// The first bytes of a file, at most `most` of them.
std::vector<std::byte> head_of(const files::SteadyFile& file, std::size_t most) {
  std::vector<std::byte> head(std::min(file.size(), most));
  file.read(0, head);
  return head;
}

void require_bare_tokens(const files::SteadyFile& file, std::size_t token_bytes) {
  if (const FileFormat format = format_of(head_of(file, format_bytes)); format != FileFormat::unknown) {
    throw Error(ErrorCode::data, fmt::format("'{}' is {}: expected a .npy file, or a file of nothing but tokens, as "
                                             "numpy's array.astype('uint{}').tofile('train.bin') writes",
                                             file.path().native(), to_string(format), 8 * token_bytes));
  }
}

/// Whether `head` looks like tokens of `width` bytes: all are below the vocabulary, and at least an eighth are not 0.
bool looks_like(std::span<const std::byte> head, std::size_t width, std::uint64_t vocabulary) {
  const std::size_t count = head.size() / width;
  std::size_t others = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t token = 0;
    std::memcpy(&token, &head[i * width], width);
    if (token >= vocabulary) {
      return false;
    }
    others += token != 0 ? 1 : 0;
  }
  return 8 * others >= count;
}

/// Advice for the user about a file that is read with 2 or 4 bytes per token but looks like `width` bytes per token.
std::string width_remedy(std::size_t token_bytes, std::size_t width) {
  const std::string remedy = width == 8 ? "tokens of 8 bytes are not read: write them as uint32" : "";
  if (token_bytes == 4) {
    return remedy;
  }
  return fmt::format("{}{}set [data] token_type = uint32; if they really have 2 bytes each, set token_type = uint16",
                     remedy, remedy.empty() ? "" : ", and ");
}

}  // namespace

TokenStream::TokenStream(files::SteadyFile file, TokenLayout layout) : file_(std::move(file)), layout_(layout) {}

TokenStream TokenStream::of_file(files::SteadyFile file, std::int64_t vocabulary, std::size_t token_bytes) {
  const std::size_t bytes = file.size();
  if (bytes == 0) {
    throw Error(ErrorCode::data, fmt::format("'{}' is empty: it has no tokens", file.path().native()));
  }
  if (format_of(head_of(file, format_bytes)) == FileFormat::npy) {
    return of_npy(std::move(file), vocabulary);
  }
  require_bare_tokens(file, token_bytes);
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

TokenStream TokenStream::of_npy(files::SteadyFile file, std::int64_t vocabulary) {
  const NpyHeader header = parse_npy(head_of(file, most_header_bytes), file.size(), file.path().native());
  const bool fits = can_be_token(header.type) && header.shape.size() == 1;
  if (!fits || header.elements == 0) {
    throw Error(ErrorCode::data,
                fmt::format("'{}' holds {} [{}]: {}", file.path().native(), to_string(header.type),
                            fmt::join(header.shape, ", "),
                            fits ? "it has no tokens" : "expected integers [tokens], one token after the other"));
  }
  TokenStream stream(std::move(file), {.begin = header.data_offset,
                                       .tokens = header.elements,
                                       .token_bytes = element_bytes(header.type),
                                       .is_signed = is_signed(header.type),
                                       .vocabulary = vocabulary});
  stream.is_typed_ = true;
  return stream;
}

std::string TokenStream::type() const {
  return fmt::format("{}int{}", layout_.is_signed ? "" : "u", 8 * layout_.token_bytes);
}

template <typename Token>
void TokenStream::read_as(std::int64_t first, std::span<std::int32_t> to) const {
  std::array<Token, 8192 / sizeof(Token)> stored;
  while (!to.empty()) {
    const std::span<Token> part = std::span(stored).first(std::min(to.size(), stored.size()));
    file_.read(layout_.begin + static_cast<std::size_t>(first) * sizeof(Token), std::as_writable_bytes(part));
    // A negative token, read as an unsigned number, is larger than any vocabulary.
    const auto vocabulary = static_cast<std::uint64_t>(layout_.vocabulary);
    std::uint64_t largest = 0;
    for (std::size_t i = 0; i < part.size(); ++i) {
      to[i] = static_cast<std::int32_t>(part[i]);
      largest = std::max(largest, static_cast<std::uint64_t>(part[i]));
    }
    if (largest >= vocabulary) {
      file_.require_unchanged();
      const auto bad =
          std::ranges::find_if(part, [&](Token token) { return static_cast<std::uint64_t>(token) >= vocabulary; });
      if constexpr (std::is_signed_v<Token>) {
        if (*bad < 0) {
          throw Error(ErrorCode::data,
                      fmt::format("'{}': token {} at position {} is negative, expected numbers from 0 on", source(),
                                  *bad, first + (bad - part.begin())));
        }
      }
      // Checks whether this token can be two tokens of 2 bytes that were read as one of 4 bytes.
      const auto number = static_cast<std::uint64_t>(*bad);
      const bool may_be_two =
          !is_typed_ && sizeof(Token) == 4 && number % 65536U < vocabulary && number / 65536U < vocabulary;
      throw Error(
          ErrorCode::data,
          fmt::format("'{}': token {} at position {} is not below the model's vocabulary of {}; {}set "
                      "[model] vocab to the vocabulary that the tokens were made with",
                      source(), *bad, first + (bad - part.begin()), layout_.vocabulary,
                      may_be_two ? "if the tokens have 2 bytes each, set [data] token_type = uint16, else " : ""));
    }
    first += static_cast<std::int64_t>(part.size());
    to = to.subspan(part.size());
  }
}

void TokenStream::read(std::int64_t first, std::span<std::int32_t> to) const {
  const auto read_either = [&](auto without_sign) {
    using Token = decltype(without_sign);
    layout_.is_signed ? read_as<std::make_signed_t<Token>>(first, to) : read_as<Token>(first, to);
  };
  switch (layout_.token_bytes) {
    case 1: read_either(std::uint8_t{}); break;
    case 2: read_either(std::uint16_t{}); break;
    case 4: read_either(std::uint32_t{}); break;
    default: read_either(std::uint64_t{}); break;
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

void require_plausible_width(const TokenStream& stream) {
  const TokenLayout& layout = stream.layout();
  if (stream.size() < static_cast<std::int64_t>(least_judged_tokens)) {
    return;
  }
  const std::vector<std::byte> head = head_of(stream.file(), most_judged_tokens * layout.token_bytes);
  const auto vocabulary = static_cast<std::uint64_t>(layout.vocabulary);
  for (std::size_t width = 8; width > layout.token_bytes; width /= 2) {
    if (looks_like(head, width, vocabulary)) {
      // In wider tokens, every second number is the upper part of a token, which never exceeds this.
      const std::uint64_t upper = (vocabulary - 1) >> (8 * layout.token_bytes);
      throw Error(ErrorCode::data,
                  fmt::format("'{}' looks as if its tokens had {} bytes each: of its first {} as uint{}, every second "
                              "is {}{}; {}",
                              stream.source(), width, head.size() / layout.token_bytes, 8 * layout.token_bytes,
                              upper > 0 ? "at most " : "", upper, width_remedy(layout.token_bytes, width)));
    }
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
