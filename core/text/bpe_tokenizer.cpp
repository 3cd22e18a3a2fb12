#include "core/text/bpe_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/text/parts.h"
#include "core/text/unicode.h"

namespace shardrun::text {
namespace {

/// Appends `text` with every `from` replaced.
void append_replaced(std::string_view text, std::string_view from, std::string_view to, std::string& result) {
  std::size_t at = 0;
  for (std::size_t found = text.find(from); found != std::string_view::npos; found = text.find(from, at)) {
    result += text.substr(at, found - at);
    result += to;
    at = found + from.size();
  }
  result += text.substr(at);
}

}  // namespace

std::string_view normalized(const std::vector<NormalizerStep>& steps, std::string_view text, std::string& scratch) {
  const std::size_t whole = text.size();
  const std::size_t most = 64 * whole + 65536;  // more than any real one makes; a file could double a text many times
  std::string next;
  for (const NormalizerStep& step : steps) {
    next.clear();
    switch (step.kind) {
      case NormalizerStep::Kind::nfc: append_nfc(text, next); break;
      case NormalizerStep::Kind::replace: append_replaced(text, step.from, step.to, next); break;
      case NormalizerStep::Kind::prepend:
        next += text.empty() ? "" : step.to;
        next += text;
        break;
    }
    std::swap(scratch, next);
    text = scratch;
    if (text.size() > most) {
      throw Error(ErrorCode::data,
                  fmt::format("the tokenizer's normalizers make {} bytes of a text of {}: they are not those of a "
                              "tokenizer",
                              text.size(), whole));
    }
  }
  return text;
}

/// Tokens of short words that were seen lately. A word's hash chooses two neighbouring places; the newer word is in the
/// first.
class WordCache {
 public:
  static constexpr std::size_t most_bytes = 24;
  static constexpr std::size_t most_tokens = 9;

  /// A word's bytes as three numbers, which tell words of one size apart.
  struct Key {
    std::array<std::uint64_t, 3> bytes{};
    std::uint8_t size = 0;  ///< 0: none

    bool operator==(const Key& other) const noexcept {
      return size == other.size &&
             ((bytes[0] ^ other.bytes[0]) | (bytes[1] ^ other.bytes[1]) | (bytes[2] ^ other.bytes[2])) == 0;
    }
  };
  /// As large as a cache line of the processor.
  struct alignas(64) Word {
    std::array<std::uint64_t, 3> bytes{};
    std::array<std::int32_t, most_tokens> tokens{};
    std::uint8_t size = 0;
    std::uint8_t count = 0;
  };

  /// REQUIRES: 1 to most_bytes bytes.
  static Key key_of(std::string_view word) noexcept {
    const auto load = [&](auto number, std::size_t at) {
      std::memcpy(&number, word.data() + at, sizeof number);
      return std::uint64_t{number};
    };
    const std::size_t size = word.size();
    Key key{.size = static_cast<std::uint8_t>(size)};
    if (size >= 8) {
      key.bytes = {load(std::uint64_t{}, 0), load(std::uint64_t{}, size >= 16 ? 8 : size - 8),
                   load(std::uint64_t{}, size - 8)};
    } else if (size >= 4) {
      key.bytes[0] = load(std::uint32_t{}, 0) | load(std::uint32_t{}, size - 4) << 32U;
    } else {
      key.bytes[0] =
          load(std::uint8_t{}, 0) | load(std::uint8_t{}, size / 2) << 8U | load(std::uint8_t{}, size - 1) << 16U;
    }
    return key;
  }

  [[nodiscard]] const Word* find(const Key& key) const noexcept {
    const Word* const first = &words_[place_of(key)];
    return is_at(*first, key) ? first : is_at(first[1], key) ? first + 1 : nullptr;
  }

  /// REQUIRES: at most most_tokens tokens.
  void add(const Key& key, std::span<const std::int32_t> tokens) noexcept {
    Word* const first = &words_[place_of(key)];
    first[1] = first[0];
    first->bytes = key.bytes;
    first->size = key.size;
    first->count = static_cast<std::uint8_t>(tokens.size());
    std::ranges::copy(tokens, first->tokens.begin());
  }

 private:
  static constexpr unsigned log_pairs = 15;

  static bool is_at(const Word& word, const Key& key) noexcept { return key == Key{word.bytes, word.size}; }

  static std::size_t place_of(const Key& key) noexcept {
    std::uint64_t hash = (key.bytes[0] ^ key.size) * 0x9E3779B97F4A7C15ULL;
    hash = (hash ^ hash >> 32U ^ key.bytes[1]) * 0xD6E8FEB86659FD93ULL;
    hash = (hash ^ hash >> 32U ^ key.bytes[2]) * 0x9E3779B97F4A7C15ULL;
    return static_cast<std::size_t>(hash >> (64U - log_pairs)) * 2;
  }

  std::vector<Word> words_ = std::vector<Word>(std::size_t{2} << log_pairs);
};

BpeTokenizer::BpeTokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

const std::string& BpeTokenizer::json() const noexcept { return parts_->json; }

std::int64_t BpeTokenizer::vocabulary() const noexcept { return static_cast<std::int64_t>(parts_->contents.size()); }

std::optional<std::int32_t> BpeTokenizer::find(std::string_view content) const {
  const auto found = parts_->ids.find(content);
  return found == parts_->ids.end() ? std::nullopt : std::optional(found->second);
}

bool BpeTokenizer::is_special(std::int32_t token) const {
  return token >= 0 && token < vocabulary() && parts_->is_special[static_cast<std::size_t>(token)];
}

const std::vector<std::int32_t>& BpeTokenizer::before() const noexcept { return parts_->before; }

const std::vector<std::int32_t>& BpeTokenizer::behind() const noexcept { return parts_->behind; }

std::string BpeTokenizer::decode(std::span<const std::int32_t> tokens) const {
  BpeDecoder decoder(*this);
  for (const std::int32_t token : tokens) {
    decoder.add(token);
  }
  return std::move(decoder.waiting_);
}

BpeEncoder::BpeEncoder(const BpeTokenizer& tokenizer)
    : parts_(tokenizer.parts_), cache_(std::make_unique<WordCache>()), scratch_(parts_->splits.size()) {}
BpeEncoder::BpeEncoder(BpeEncoder&& other) noexcept = default;
BpeEncoder& BpeEncoder::operator=(BpeEncoder&& other) noexcept = default;
BpeEncoder::~BpeEncoder() = default;

void BpeEncoder::encode(std::string_view text, std::vector<std::int32_t>& tokens) {
  if (const std::optional<std::size_t> at = first_invalid_utf8(text)) {
    throw Error(ErrorCode::data, fmt::format("byte {} (0x{:02X}) is not UTF-8, which the tokenizer needs", *at,
                                             static_cast<unsigned char>(text[*at])));
  }
  text_ = text;
  tokens_ = &tokens;
  if (constexpr std::size_t long_text = std::size_t{1} << 20U; text.size() >= long_text) {
    tokens.reserve(tokens.size() + text.size() / 3);
  }
  std::vector<Segment> segments;
  parts_->raw_tokens.split(text, segments);
  for (const Segment& segment : segments) {
    if (segment.token >= 0) {
      tokens.push_back(segment.token);
    } else {
      encode_segment(segment.text, segment.text.data() == text.data());
    }
  }
}

void BpeEncoder::encode_segment(std::string_view text, bool is_first) {
  std::string scratch;
  text = normalized(parts_->normalizer, text, scratch);
  std::vector<Segment> segments;
  parts_->normalized_tokens.split(text, segments);
  for (const Segment& segment : segments) {
    if (segment.token >= 0) {
      tokens_->push_back(segment.token);
    } else if (!segment.text.empty()) {
      split(segment.text, 0, is_first && segment.text.data() == text.data());
    }
  }
}

void BpeEncoder::split(std::string_view piece, std::size_t step, bool is_first) {
  if (step == parts_->splits.size()) {
    encode_piece(piece);
    return;
  }
  const SplitStep& how = parts_->splits[step];
  std::string& changed = scratch_[step];
  std::size_t begin = 0;
  const auto cut = [&](std::size_t end) {
    if (end > begin) {
      split(piece.substr(begin, end - begin), step + 1, is_first && begin == 0);
      begin = end;
    }
  };
  switch (how.kind) {
    using enum SplitStep::Kind;
    case scan: {
      const std::uint8_t* const classes = character_classes();
      const bool is_last = step + 1 == parts_->splits.size();
      while (begin < piece.size()) {
        const std::size_t end = how.scanner(piece, begin, classes);
        if (is_last) {
          encode_piece(piece.substr(begin, end - begin));
          begin = end;
        } else {
          cut(end);
        }
      }
      return;
    }
    case digits:
    case digit_runs: {
      const std::uint8_t* const classes = character_classes();
      bool was_digit = false;
      for (std::size_t at = 0; at < piece.size();) {
        const Character character = character_at(piece, at);
        const bool is_digit = (classes[character.code_point] & numeric) != 0;
        if (is_digit != was_digit || (is_digit && how.kind == digits)) {
          cut(at);
        }
        was_digit = is_digit;
        at += character.bytes;
      }
      cut(piece.size());
      return;
    }
    case behind:
    case around:
      for (std::size_t at = piece.find(how.mark); at != std::string_view::npos; at = piece.find(how.mark, begin)) {
        if (how.kind == around) {
          cut(at);
        }
        cut(at + how.mark.size());
      }
      cut(piece.size());
      return;
    case prefix_blank:
      if (!piece.starts_with(' ')) {
        changed.assign(1, ' ').append(piece);
        piece = changed;
      }
      split(piece, step + 1, is_first);
      return;
    case marks:
    case before_marks: {
      changed.clear();
      append_replaced(piece, " ", how.mark, changed);
      const bool prepends =
          how.prepends == SplitStep::Prepends::always || (how.prepends == SplitStep::Prepends::first && is_first);
      if (prepends && !changed.starts_with(how.mark)) {
        changed.insert(0, how.mark);
      }
      piece = changed;
      if (how.kind == before_marks) {
        for (std::size_t at = piece.find(how.mark, 1); at != std::string_view::npos;
             at = piece.find(how.mark, at + 1)) {
          cut(at);
        }
      }
      cut(piece.size());
      return;
    }
  }
}

void BpeEncoder::encode_piece(std::string_view piece) {
  if (piece.size() <= WordCache::most_bytes) {
    encode_part(piece);
    return;
  }
  if (piece.size() > INT32_MAX) {
    throw Error(ErrorCode::data,
                fmt::format("a piece of {} bytes cannot be cut: give texts of less than 2 GiB", piece.size()));
  }
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t end = parts_->model.end_of_part(piece, at);
    encode_part(piece.substr(at, end - at));
    at = end;
  }
}

void BpeEncoder::encode_part(std::string_view part) {
  const bool is_short = part.size() <= WordCache::most_bytes;
  WordCache::Key key;
  if (is_short) {
    key = WordCache::key_of(part);
    if (const WordCache::Word* const word = cache_->find(key)) {
      for (std::size_t i = 0; i < word->count; ++i) {
        tokens_->push_back(word->tokens[i]);
      }
      return;
    }
  }
  const std::size_t first = tokens_->size();
  if (const std::optional<std::size_t> missing = parts_->model.encode(part, *tokens_)) {
    // The place is known where nothing has changed the text.
    const bool is_of_text =
        std::less_equal<>()(text_.data(), part.data()) && std::less<>()(part.data(), text_.data() + text_.size());
    const std::string where =
        is_of_text ? fmt::format(" at byte {}", static_cast<std::size_t>(part.data() - text_.data()) + *missing) : "";
    const std::size_t size = parts_->model.settings().byte_level ? 1 : character_at(part, *missing).bytes;
    std::string shown_bytes;
    for (const char c : part.substr(*missing, size)) {
      shown_bytes += fmt::format(" 0x{:02X}", static_cast<unsigned char>(c));
    }
    throw Error(ErrorCode::data,
                fmt::format("the tokenizer has no token for {}{}{}, in \"{}\", and none for what is unknown: leave it "
                            "out of the text, or use another tokenizer",
                            size > 1 ? "bytes" : "byte", shown_bytes, where, shown(part)));
  }
  const std::size_t count = tokens_->size() - first;
  if (is_short && count <= WordCache::most_tokens) {
    cache_->add(key, std::span(*tokens_).subspan(first));
  }
}

BpeDecoder::BpeDecoder(const BpeTokenizer& tokenizer)
    : parts_(tokenizer.parts_), to_strip_(tokenizer.parts_->decoder.strips) {}

void BpeDecoder::add(std::int32_t token) {
  if (token < 0 || static_cast<std::size_t>(token) >= parts_->contents.size()) {
    throw Error(ErrorCode::data, fmt::format("cannot decode token {}: the tokenizer has tokens 0 to {}", token,
                                             parts_->contents.size() - 1));
  }
  if (parts_->is_special[static_cast<std::size_t>(token)]) {
    return;
  }
  const std::string decoded = parts_->decoder.decode(parts_->contents[static_cast<std::size_t>(token)], is_first_);
  std::string_view bytes = decoded;
  waiting_ += is_first_ ? "" : parts_->decoder.separator;
  is_first_ = false;
  while (to_strip_ > 0 && !bytes.empty()) {
    if (bytes.front() != parts_->decoder.stripped) {
      to_strip_ = 0;
      break;
    }
    bytes.remove_prefix(1);
    --to_strip_;
  }
  waiting_ += bytes;
}

void BpeDecoder::decode(std::int32_t token, std::string& text) {
  add(token);
  const std::size_t kept = begun_utf8(waiting_);
  text.append(waiting_, 0, waiting_.size() - kept);
  waiting_.erase(0, waiting_.size() - kept);
}

void BpeDecoder::finish(std::string& text) {
  text += waiting_;
  waiting_.clear();
}

}  // namespace shardrun::text
