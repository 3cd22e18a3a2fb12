#include "core/text/bpe_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <queue>
#include <utility>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/base/utf8.h"
#include "core/text/unicode.h"

namespace shardrun::text {
namespace {

constexpr std::int64_t byte_count = 256;

using Pair = std::uint64_t;  // left << 32 | right

Pair joined(std::int32_t left, std::int32_t right) {
  return static_cast<Pair>(static_cast<std::uint32_t>(left)) << 32U | static_cast<std::uint32_t>(right);
}

struct Word {
  std::vector<std::int32_t> symbols;
  std::int64_t count = 0;
};

struct PairUse {
  std::int64_t count = 0;
  std::vector<std::uint32_t> words;  ///< words that contained the pair when it was counted; a word can be listed twice
};

struct Candidate {
  std::int64_t count = 0;
  Pair pair = 0;

  /// Whether `other` is merged before this candidate.
  bool operator<(const Candidate& other) const noexcept {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

/// Counts the pairs of neighbouring tokens in all words, and finds the pair to merge next.
class Merging {
 public:
  explicit Merging(std::vector<Word> words) : words_(std::move(words)) {
    for (std::uint32_t word = 0; word < words_.size(); ++word) {
      const std::vector<std::int32_t>& symbols = words_[word].symbols;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        change(joined(symbols[i], symbols[i + 1]), words_[word].count, word);
      }
    }
    push_changed();
  }

  /// The most frequent pair; nothing if none is left.
  std::optional<Pair> next() {
    while (!candidates_.empty()) {
      Candidate top = candidates_.top();
      candidates_.pop();
      const std::int64_t count = uses_[top.pair].count;
      if (count == top.count && count > 0) {
        return top.pair;
      }
      if (count > 0) {
        top.count = count;
        candidates_.push(top);
      }
    }
    return std::nullopt;
  }

  void merge(Pair pair, std::int32_t whole) {
    const std::vector<std::uint32_t> words = std::move(uses_[pair].words);
    uses_[pair].words.clear();
    for (const std::uint32_t word : words) {
      merge_in(word, pair, whole);
    }
    uses_[pair].count = 0;
    push_changed();
  }

 private:
  void change(Pair pair, std::int64_t by, std::uint32_t word) {
    PairUse& use = uses_[pair];
    use.count += by;
    if (by > 0) {
      if (use.words.empty() || use.words.back() != word) {
        use.words.push_back(word);
      }
      changed_.push_back(pair);
    }
  }

  void merge_in(std::uint32_t index, Pair pair, std::int32_t whole) {
    std::vector<std::int32_t>& symbols = words_[index].symbols;
    const std::int64_t count = words_[index].count;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < symbols.size(); ++kept) {
      if (i + 1 == symbols.size() || joined(symbols[i], symbols[i + 1]) != pair) {
        symbols[kept] = symbols[i++];
        continue;
      }
      if (kept > 0) {
        change(joined(symbols[kept - 1], symbols[i]), -count, index);
        change(joined(symbols[kept - 1], whole), count, index);
      }
      if (i + 2 < symbols.size()) {
        change(joined(symbols[i + 1], symbols[i + 2]), -count, index);
        change(joined(whole, symbols[i + 2]), count, index);
      }
      symbols[kept] = whole;
      i += 2;
    }
    symbols.resize(kept);
  }

  void push_changed() {
    std::ranges::sort(changed_);
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (const Pair pair : changed_) {
      if (const std::int64_t count = uses_[pair].count; count > 0) {
        candidates_.push({count, pair});
      }
    }
    changed_.clear();
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, PairUse> uses_;
  std::vector<Pair> changed_;  ///< pairs that the last merge has made more frequent
  std::priority_queue<Candidate> candidates_;
};

/// The result of training. Tokens and merges are written in the byte-level alphabet of GPT-2.
struct Trained {
  std::vector<std::string> tokens;
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;
};

std::string json_of(const Trained& trained, std::size_t special, const std::string& family) {
  boost::json::array added;
  for (std::size_t id = 0; id < special; ++id) {
    added.push_back({{"id", id},
                     {"content", trained.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const auto byte_level = [](bool expression) {
    return boost::json::object(
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", expression}});
  };
  boost::json::object splits = byte_level(true);
  if (family != "gpt2") {
    splits = {{"type", "Sequence"},
              {"pretokenizers",
               {{{"type", "Split"},
                 {"pattern", {{"Regex", *expression_of(family)}}},
                 {"behavior", "Isolated"},
                 {"invert", false}},
                byte_level(false)}}};
  }
  boost::json::object vocab;
  for (std::size_t id = 0; id < trained.tokens.size(); ++id) {
    vocab[trained.tokens[id]] = id;
  }
  boost::json::array merges;
  for (const auto& [left, right] : trained.merges) {
    merges.push_back({trained.tokens[static_cast<std::size_t>(left)], trained.tokens[static_cast<std::size_t>(right)]});
  }
  const boost::json::object file = {{"version", "1.0"},
                                    {"truncation", nullptr},
                                    {"padding", nullptr},
                                    {"added_tokens", added},
                                    {"normalizer", nullptr},
                                    {"pre_tokenizer", splits},
                                    {"post_processor", nullptr},
                                    {"decoder", byte_level(true)},
                                    {"model",
                                     {{"type", "BPE"},
                                      {"dropout", nullptr},
                                      {"unk_token", nullptr},
                                      {"continuing_subword_prefix", nullptr},
                                      {"end_of_word_suffix", nullptr},
                                      {"fuse_unk", false},
                                      {"byte_fallback", false},
                                      {"ignore_merges", false},
                                      {"vocab", vocab},
                                      {"merges", merges}}}};
  return boost::json::serialize(file) + "\n";
}

}  // namespace

BpeTrainer::BpeTrainer(std::string_view family, std::vector<std::string> special)
    : family_(family), special_(std::move(special)), scanner_(*scanner_of(*expression_of(family))) {
  for (std::size_t id = 0; id < special_.size(); ++id) {
    finder_.add({.id = static_cast<std::int32_t>(id), .special = true}, special_[id]);
  }
}

void BpeTrainer::add(std::string_view text) {
  if (const std::optional<std::size_t> at = first_invalid_utf8(text)) {
    throw Error(ErrorCode::data, fmt::format("byte {} (0x{:02X}) is not UTF-8, which the tokenizer needs", *at,
                                             static_cast<unsigned char>(text[*at])));
  }
  const std::uint8_t* const classes = character_classes();
  std::vector<Segment> segments;
  finder_.split(text, segments);
  for (const Segment& segment : segments) {
    for (std::size_t at = 0; segment.token < 0 && at < segment.text.size();) {
      const std::size_t end = scanner_(segment.text, at, classes);
      const std::string_view word = segment.text.substr(at, end - at);
      if (const auto found = words_.find(word); found != words_.end()) {
        ++found->second;
      } else {
        words_.emplace(word, 1);
      }
      at = end;
    }
  }
}

std::string BpeTrainer::train(std::int64_t vocabulary) const {
  Trained trained{special_, {}};
  const std::int64_t least = static_cast<std::int64_t>(special_.size()) + byte_count;
  if (vocabulary < least) {
    throw Error(ErrorCode::data,
                fmt::format("a vocabulary of {} is too small: the 256 bytes and {} special tokens need "
                            "{}",
                            vocabulary, special_.size(), least));
  }
  // The 256 tokens of single bytes are numbered in the order of their characters in the byte-level alphabet.
  std::vector<std::pair<std::string, unsigned char>> bytes;
  for (int byte = 0; byte < byte_count; ++byte) {
    bytes.emplace_back(alphabet_of_bytes(std::string(1, static_cast<char>(byte))), static_cast<unsigned char>(byte));
  }
  std::ranges::sort(bytes);  // the order of UTF-8 bytes is the order of code points
  std::array<std::int32_t, byte_count> token_of_byte{};
  TokenIds ids;
  for (const std::string& token : special_) {
    if (token.empty() || !ids.emplace(token, static_cast<std::int32_t>(ids.size())).second) {
      throw Error(ErrorCode::data, fmt::format("the special token '{}' is empty, or given twice", token));
    }
  }
  for (const auto& [token, byte] : bytes) {
    token_of_byte[byte] = static_cast<std::int32_t>(trained.tokens.size());
    if (!ids.emplace(token, token_of_byte[byte]).second) {
      throw Error(ErrorCode::data, fmt::format("'{}' cannot be a special token: it is that of a byte", token));
    }
    trained.tokens.push_back(token);
  }
  std::vector<Word> words;
  for (const auto& [text, count] : words_) {
    Word word{{}, count};
    for (const char byte : text) {
      word.symbols.push_back(token_of_byte[static_cast<unsigned char>(byte)]);
    }
    words.push_back(std::move(word));
  }
  Merging merging(std::move(words));
  while (static_cast<std::int64_t>(trained.tokens.size()) < vocabulary) {
    stop_point();
    const std::optional<Pair> pair = merging.next();
    if (!pair) {
      break;
    }
    const auto left = static_cast<std::int32_t>(*pair >> 32U);
    const auto right = static_cast<std::int32_t>(*pair & UINT32_MAX);
    std::string whole =
        trained.tokens[static_cast<std::size_t>(left)] + trained.tokens[static_cast<std::size_t>(right)];
    const auto [known, is_new] = ids.emplace(whole, static_cast<std::int32_t>(trained.tokens.size()));
    if (is_new) {
      trained.tokens.push_back(std::move(whole));
    }
    trained.merges.emplace_back(left, right);
    merging.merge(*pair, known->second);
  }
  return json_of(trained, special_.size(), family_);
}

}  // namespace shardrun::text
