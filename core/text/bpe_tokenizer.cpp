#include "core/text/bpe_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/text/byte_pairs.h"
#include "core/text/parts.h"
#include "core/text/unicode.h"

namespace shardrun::text {

std::string_view normalized(const std::vector<NormalizerStep>& steps, std::string_view text, std::string& scratch) {
  const std::size_t whole = text.size();
  const std::size_t most = 64 * whole + 65536;  // beyond real tokenizers; bounds steps that double a text repeatedly
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

/// A cache of the tokens of short words, with a queue of words to look up. A word's hash chooses two neighbouring
/// entries; the newer word is in the first. Most entries are not in the processor's caches, so queue() prefetches an
/// entry, and the caller looks it up once the queue is full.
class WordCache {
 public:
  static constexpr std::size_t most_bytes = 24;
  static constexpr std::size_t most_tokens = 8;
  static constexpr std::size_t most_queued = 32;

  /// One entry; it fills a cache line of the processor.
  struct alignas(64) Word {
    std::array<std::uint64_t, 3> bytes{};
    std::array<std::int32_t, most_tokens> tokens{};
    std::uint8_t size = 0;
    std::uint8_t count = 0;
  };
  struct Queued {
    std::string_view text;
    std::array<std::uint64_t, 3> bytes{};  ///< the text's bytes, padded with zeros
    std::uint64_t hash = 0;
  };

  /// Queues a word. `limit`: the end of the memory that can be read after the word's end. REQUIRES: the word has 1 to
  /// most_bytes bytes; the queue is not full.
  void queue(std::string_view word, const char* limit) noexcept {
    Queued& queued = queue_[queued_++];
    queued.text = word;
    set_bytes(queued.bytes, word, limit);
    queued.hash = hash_of(queued.bytes, word.size());
    __builtin_prefetch(&words_[place_of(queued.hash)]);
  }
  [[nodiscard]] bool is_full() const noexcept { return queued_ == queue_.size(); }
  /// Empties the queue and returns its words, which are valid until the next word is queued.
  std::span<const Queued> take_queue() noexcept { return std::span(queue_).first(std::exchange(queued_, 0)); }

  [[nodiscard]] const Word* find(const Queued& word) const noexcept {
    const Word* const first = &words_[place_of(word.hash)];
    return is_at(*first, word) ? first : is_at(first[1], word) ? first + 1 : nullptr;
  }

  /// Stores a word's tokens. REQUIRES: there are at most most_tokens tokens.
  void add(const Queued& queued, std::span<const std::int32_t> tokens) {
    if (++added_ > words_.size() / 2 && log_pairs_ < most_log_pairs) {
      grow();
    }
    Word word{.bytes = queued.bytes,
              .size = static_cast<std::uint8_t>(queued.text.size()),
              .count = static_cast<std::uint8_t>(tokens.size())};
    std::ranges::copy(tokens, word.tokens.begin());
    put(word, queued.hash);
  }

 private:
  using Words = std::vector<Word, HugePages<Word>>;

  static constexpr unsigned most_log_pairs = 17;  // 16 MiB

  /// Masks that keep the first `size` bytes of a word, indexed by size.
  static constexpr std::array<std::array<std::uint64_t, 3>, most_bytes + 1> masks = [] {
    std::array<std::array<std::uint64_t, 3>, most_bytes + 1> made{};
    for (std::size_t size = 0; size < made.size(); ++size) {
      for (std::size_t byte = 0; byte < size; ++byte) {
        made[size][byte / 8] |= std::uint64_t{0xFF} << byte % 8 * 8;
      }
    }
    return made;
  }();

  static bool is_at(const Word& word, const Queued& queued) noexcept {
    return ((word.bytes[0] ^ queued.bytes[0]) | (word.bytes[1] ^ queued.bytes[1]) | (word.bytes[2] ^ queued.bytes[2]) |
            (word.size ^ queued.text.size())) == 0;
  }

  static void set_bytes(std::array<std::uint64_t, 3>& bytes, std::string_view word, const char* limit) noexcept {
    if (static_cast<std::size_t>(limit - word.data()) < most_bytes) {
      bytes = {};
      std::memcpy(bytes.data(), word.data(), word.size());
      return;
    }
    const std::array<std::uint64_t, 3>& mask = masks[word.size()];
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      std::uint64_t part = 0;
      std::memcpy(&part, word.data() + 8 * i, 8);
      bytes[i] = part & mask[i];
    }
  }

  static std::uint64_t hash_of(const std::array<std::uint64_t, 3>& bytes, std::uint64_t size) noexcept {
    std::uint64_t hash = (bytes[0] ^ size) * 0x9E3779B97F4A7C15ULL;
    hash = (hash ^ hash >> 32U ^ bytes[1]) * 0xD6E8FEB86659FD93ULL;
    return (hash ^ hash >> 32U ^ bytes[2]) * 0x9E3779B97F4A7C15ULL;
  }

  [[nodiscard]] std::size_t place_of(std::uint64_t hash) const noexcept {
    return static_cast<std::size_t>(hash >> (64U - log_pairs_)) * 2;
  }

  void put(const Word& word, std::uint64_t hash) noexcept {
    Word* const first = &words_[place_of(hash)];
    first[1] = first[0];
    first[0] = word;
  }

  void grow() {
    log_pairs_ = std::min(log_pairs_ + 3, most_log_pairs);
    added_ = 0;
    Words words(std::size_t{2} << log_pairs_);
    std::swap(words_, words);
    for (const Word& word : words) {
      if (word.size > 0) {
        put(word, hash_of(word.bytes, word.size));
      }
    }
  }

  unsigned log_pairs_ = 8;
  Words words_ = Words(std::size_t{2} << log_pairs_);
  std::size_t added_ = 0;  ///< words added since the table got its present size
  std::array<Queued, most_queued> queue_;
  std::size_t queued_ = 0;
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
  cache_->take_queue();  // words that remained in the queue when an earlier call threw
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
      limit_ = text.data() + text.size();
      split(segment.text, 0, is_first && segment.text.data() == text.data());
      encode_queue();
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
  // The queue refers to the bytes of `changed`, so it is encoded before the next piece overwrites them.
  const auto with_changed = [&](const auto& act) {
    piece = changed;
    const char* const limit = std::exchange(limit_, piece.data() + piece.size());
    act();
    encode_queue();
    limit_ = limit;
  };
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
      if (piece.starts_with(' ')) {
        split(piece, step + 1, is_first);
        return;
      }
      changed.assign(1, ' ').append(piece);
      with_changed([&] { split(piece, step + 1, is_first); });
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
      with_changed([&] {
        if (how.kind == before_marks) {
          for (std::size_t at = piece.find(how.mark, 1); at != std::string_view::npos;
               at = piece.find(how.mark, at + 1)) {
            cut(at);
          }
        }
        cut(piece.size());
      });
      return;
    }
  }
}

void BpeEncoder::encode_piece(std::string_view piece) {
  if (piece.size() <= WordCache::most_bytes) {
    queue_word(piece);
    return;
  }
  if (piece.size() > INT32_MAX) {
    throw Error(ErrorCode::data,
                fmt::format("a piece of {} bytes cannot be cut: give texts of less than 2 GiB", piece.size()));
  }
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t end = parts_->model.end_of_part(piece, at);
    if (const std::string_view part = piece.substr(at, end - at); part.size() <= WordCache::most_bytes) {
      queue_word(part);
    } else {
      encode_queue();
      encode_new(part);
    }
    at = end;
  }
}

inline void BpeEncoder::queue_word(std::string_view word) {
  cache_->queue(word, limit_);
  if (cache_->is_full()) {
    encode_queue();
  }
}

void BpeEncoder::encode_queue() {
  std::array<std::int32_t, WordCache::most_queued * WordCache::most_tokens> found;
  std::size_t count = 0;
  const auto append_found = [&] {
    tokens_->insert(tokens_->end(), found.begin(), found.begin() + static_cast<std::ptrdiff_t>(count));
    count = 0;
  };
  for (const WordCache::Queued& queued : cache_->take_queue()) {
    if (const WordCache::Word* const word = cache_->find(queued)) {
      std::memcpy(&found[count], word->tokens.data(), sizeof word->tokens);  // a copy of constant size is faster
      count += word->count;
      continue;
    }
    append_found();
    const std::size_t first = tokens_->size();
    encode_new(queued.text);
    if (tokens_->size() - first <= WordCache::most_tokens) {
      cache_->add(queued, std::span(*tokens_).subspan(first));
    }
  }
  append_found();
}

void BpeEncoder::encode_new(std::string_view part) {
  if (const std::optional<std::size_t> missing = parts_->model.encode(part, *tokens_)) {
    // The error can name the place only if the part lies in the original text, not in a changed copy.
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
