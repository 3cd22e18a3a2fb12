#include "core/text/gguf_tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/text/byte_pairs.h"
#include "core/text/patterns.h"
#include "core/text/unicode.h"

namespace shardrun::text {
namespace {

constexpr const char* mark_of_blank = "\xE2\x96\x81";

/// A value of tokenizer.ggml.token_type.
enum class TokenType : std::int64_t { normal = 1, unknown, control, user_defined, unused, byte };

/// How tokenizer.ggml.pre cuts text into words.
struct Cut {
  std::string_view family;     ///< name for expression_of()
  bool digits = false;         ///< each digit is cut out first
  bool ignore_merges = false;  ///< a word that is a token as a whole is not merged from symbols
  bool adds_bos = false;       ///< whether a BOS token is added if the file does not say it
};

constexpr Cut gpt2_cut{.family = "gpt2"};
constexpr Cut digits_cut{.family = "gpt2", .digits = true};
constexpr Cut llama3_cut{.family = "llama3", .ignore_merges = true, .adds_bos = true};
constexpr Cut qwen2_cut{.family = "qwen2"};
constexpr Cut o200k_cut{.family = "o200k"};
constexpr Cut tekken_cut{.family = "tekken", .ignore_merges = true, .adds_bos = true};

constexpr std::array<std::pair<std::string_view, Cut>, 32> cuts = {{
    {"gpt-2", gpt2_cut},       {"phi-2", gpt2_cut},       {"mpt", gpt2_cut},          {"olmo", gpt2_cut},
    {"jais", gpt2_cut},        {"trillion", gpt2_cut},    {"exaone4", gpt2_cut},      {"gigachat", gpt2_cut},
    {"smollm", digits_cut},    {"starcoder", digits_cut}, {"refact", digits_cut},     {"command-r", digits_cut},
    {"codeshell", digits_cut}, {"exaone", digits_cut},    {"minerva-7b", digits_cut}, {"llama3", llama3_cut},
    {"llama-v3", llama3_cut},  {"llama-bpe", llama3_cut}, {"falcon3", llama3_cut},    {"falcon-h1", llama3_cut},
    {"pixtral", llama3_cut},   {"lfm2", llama3_cut},      {"qwen2", qwen2_cut},       {"deepseek-r1-qwen", qwen2_cut},
    {"megrez", qwen2_cut},     {"hunyuan", qwen2_cut},    {"stablelm2", qwen2_cut},   {"gpt-4o", o200k_cut},
    {"llama4", o200k_cut},     {"kanana2", o200k_cut},    {"minimax-m2", o200k_cut},  {"tekken", tekken_cut},
}};

class GgufTokenizer {
 public:
  GgufTokenizer(const files::GgufContents& gguf, std::string_view source) : gguf_(gguf), source_(source) {
    const std::optional<std::string> kind = gguf_.text("tokenizer.ggml.model", source_);
    if (!kind) {
      refuse("it has no tokenizer.ggml.model, and so no tokenizer");
    }
    if (*kind != "gpt2" && *kind != "llama") {
      refuse(fmt::format("tokenizer.ggml.model = {}; read are gpt2 (byte pairs by merges) and llama (pieces by scores)",
                         printable(shown(*kind))));
    }
    by_scores_ = *kind == "llama";
    tokens_ = gguf_.list<std::string>("tokenizer.ggml.tokens", source_);
    if (tokens_ == nullptr || tokens_->empty() || tokens_->size() > INT32_MAX) {
      refuse("it has no tokenizer.ggml.tokens");
    }
    for (std::size_t i = 0; i < tokens_->size(); ++i) {
      if (!ids_.emplace((*tokens_)[i], static_cast<std::int32_t>(i)).second) {
        refuse(fmt::format("the token '{}' occurs twice", printable(shown((*tokens_)[i]))));
      }
    }
    types_ = gguf_.list<std::int64_t>("tokenizer.ggml.token_type", source_);
    if (types_ != nullptr && types_->size() != tokens_->size()) {
      refuse(fmt::format("tokenizer.ggml.token_type has {} elements, and there are {} tokens", types_->size(),
                         tokens_->size()));
    }
  }

  std::string made() {
    boost::json::object root{{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
    root["added_tokens"] = added_tokens();
    (by_scores_ ? add_pieces : add_byte_pairs)(*this, root);
    return boost::json::serialize(root);
  }

 private:
  [[noreturn]] void refuse(const std::string& fault) const {
    throw Error(ErrorCode::data, fmt::format("cannot read the tokenizer of '{}': {}", source_, fault));
  }

  TokenType type_of(std::size_t token) const {
    return types_ == nullptr ? TokenType::normal : static_cast<TokenType>((*types_)[token]);
  }

  boost::json::array added_tokens() const {
    boost::json::array added;
    for (std::size_t i = 0; i < tokens_->size(); ++i) {
      const TokenType type = type_of(i);
      const bool is_special = type == TokenType::control || type == TokenType::unknown;
      if ((is_special || type == TokenType::user_defined) && !(*tokens_)[i].empty()) {
        added.push_back({{"id", i},
                         {"content", (*tokens_)[i]},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", false},
                         {"special", is_special}});
      }
    }
    return added;
  }

  boost::json::object vocabulary() const {
    boost::json::object vocab;
    for (std::size_t i = 0; i < tokens_->size(); ++i) {
      vocab[(*tokens_)[i]] = i;
    }
    return vocab;
  }

  /// The token that is put before (`kind` "bos") or after ("eos") a text; nothing if none is. `otherwise`: whether a
  /// token is put there if the file does not say it. `usual`: the token's id if the file has none.
  std::optional<std::int64_t> around(const std::string& kind, bool otherwise, std::optional<std::int64_t> usual) const {
    if (!gguf_.flag("tokenizer.ggml.add_" + kind + "_token", source_).value_or(otherwise)) {
      return std::nullopt;
    }
    const std::string key = "tokenizer.ggml." + kind + "_token_id";
    const std::optional<std::int64_t> token = gguf_.integer(key, source_);
    if (token && (*token < 0 || *token >= static_cast<std::int64_t>(tokens_->size()))) {
      refuse(fmt::format("{} = {}, expected a token below {}", key, *token, tokens_->size()));
    }
    return token ? token : usual;
  }

  /// The post_processor of a tokenizer.json; null if no token is put before or after a text.
  boost::json::value post_processor(bool adds_bos, std::optional<std::int64_t> usual_bos) const {
    const std::optional<std::int64_t> bos = around("bos", adds_bos, usual_bos);
    const std::optional<std::int64_t> eos = around("eos", false, std::nullopt);
    if (!bos && !eos) {
      return nullptr;
    }
    boost::json::object special;
    const auto element = [&](std::int64_t token, int sequence) {
      const std::string& content = (*tokens_)[static_cast<std::size_t>(token)];
      special[content] = {{"id", content}, {"ids", boost::json::array{token}}, {"tokens", boost::json::array{content}}};
      return boost::json::object{{"SpecialToken", {{"id", content}, {"type_id", sequence}}}};
    };
    const auto add = [&](boost::json::array& to, const char* name, int sequence) {
      if (bos) {
        to.push_back(element(*bos, sequence));
      }
      to.push_back(boost::json::object{{"Sequence", {{"id", name}, {"type_id", sequence}}}});
      if (eos) {
        to.push_back(element(*eos, sequence));
      }
    };
    boost::json::array single;
    boost::json::array pair;
    add(single, "A", 0);
    add(pair, "A", 0);
    add(pair, "B", 1);
    return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
  }

  Cut cut() const {
    const std::optional<std::string> pre = gguf_.text("tokenizer.ggml.pre", source_);
    const auto* const found = std::ranges::find(cuts, pre.value_or(""), &decltype(cuts)::value_type::first);
    if (found == cuts.end()) {
      std::vector<std::string_view> known;
      std::ranges::transform(cuts, std::back_inserter(known), &decltype(cuts)::value_type::first);
      std::ranges::sort(known);
      refuse(fmt::format("tokenizer.ggml.pre{}: known are {}",
                         pre ? fmt::format(" = {}", printable(shown(*pre)))
                             : " is missing, so that it is not known how text is cut into words",
                         fmt::join(known, ", ")));
    }
    return found->second;
  }

  static void add_byte_pairs(const GgufTokenizer& of, boost::json::object& root) {
    const Cut cut = of.cut();
    boost::json::array splits;
    if (cut.digits) {
      splits.push_back({{"type", "Digits"}, {"individual_digits", true}});
    }
    splits.push_back({{"type", "Split"},
                      {"pattern", {{"Regex", *expression_of(cut.family)}}},
                      {"behavior", "Isolated"},
                      {"invert", false}});
    const auto byte_level = [](const char* type) {
      return boost::json::object{
          {"type", type}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
    };
    splits.push_back(byte_level("ByteLevel"));
    root["normalizer"] = nullptr;
    root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", splits}};
    root["post_processor"] = of.post_processor(cut.adds_bos, std::nullopt);
    root["decoder"] = byte_level("ByteLevel");
    root["model"] = {{"type", "BPE"},
                     {"dropout", nullptr},
                     {"unk_token", nullptr},
                     {"continuing_subword_prefix", nullptr},
                     {"end_of_word_suffix", nullptr},
                     {"fuse_unk", false},
                     {"byte_fallback", false},
                     {"ignore_merges", cut.ignore_merges},
                     {"vocab", of.vocabulary()},
                     {"merges", of.merges()}};
  }

  /// The merges of tokenizer.ggml.merges; repeated ones are left out.
  boost::json::array merges() const {
    const std::vector<std::string>* const list = gguf_.list<std::string>("tokenizer.ggml.merges", source_);
    if (list == nullptr) {
      refuse("it has no tokenizer.ggml.merges");
    }
    boost::json::array merges;
    std::set<std::string_view> seen;
    for (const std::string& merge : *list) {
      const std::size_t blank = merge.find(' ', 1);
      if (blank == std::string::npos) {
        refuse(fmt::format("the merge '{}' is not two tokens with a blank between them", printable(shown(merge))));
      }
      if (seen.insert(merge).second) {
        merges.push_back(boost::json::array{merge.substr(0, blank), merge.substr(blank + 1)});
      }
    }
    return merges;
  }

  /// Writes a SentencePiece vocabulary as a BPE model. SentencePiece merges the pair whose merged piece has the highest
  /// score; of equal scores, the leftmost pair. So each way to cut a piece into two pieces becomes a merge.
  static void add_pieces(const GgufTokenizer& of, boost::json::object& root) {
    const bool prefixes = of.gguf_.flag("tokenizer.ggml.add_space_prefix", of.source_).value_or(true);
    boost::json::array normalizers;
    boost::json::array decoders{{{"type", "Replace"}, {"pattern", {{"String", mark_of_blank}}}, {"content", " "}},
                                {{"type", "ByteFallback"}},
                                {{"type", "Fuse"}}};
    if (prefixes) {
      normalizers.push_back({{"type", "Prepend"}, {"prepend", mark_of_blank}});
      decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    normalizers.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", mark_of_blank}});
    root["normalizer"] = {{"type", "Sequence"}, {"normalizers", normalizers}};
    root["pre_tokenizer"] = nullptr;
    const bool has_usual_bos = of.tokens_->size() > 1;
    root["post_processor"] = of.post_processor(true, has_usual_bos ? std::optional<std::int64_t>(1) : std::nullopt);
    root["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
    const std::int64_t unknown = of.gguf_.integer("tokenizer.ggml.unknown_token_id", of.source_).value_or(0);
    if (unknown < 0 || unknown >= static_cast<std::int64_t>(of.tokens_->size())) {
      of.refuse(
          fmt::format("tokenizer.ggml.unknown_token_id = {}, expected a token below {}", unknown, of.tokens_->size()));
    }
    auto [merges, ranks] = of.merges_by_score();
    root["model"] = {{"type", "BPE"},
                     {"dropout", nullptr},
                     {"unk_token", (*of.tokens_)[static_cast<std::size_t>(unknown)]},
                     {"continuing_subword_prefix", nullptr},
                     {"end_of_word_suffix", nullptr},
                     {"fuse_unk", true},
                     {"byte_fallback", true},
                     {"ignore_merges", false},
                     {"vocab", of.vocabulary()},
                     {"merges", std::move(merges)},
                     {"merge_ranks", std::move(ranks)}};
  }

  std::pair<boost::json::array, boost::json::array> merges_by_score() const {
    const std::vector<double>* const scores = gguf_.list<double>("tokenizer.ggml.scores", source_);
    if (scores == nullptr || scores->size() != tokens_->size()) {
      refuse(fmt::format("tokenizer.ggml.scores has {} elements, and there are {} tokens",
                         scores == nullptr ? 0 : scores->size(), tokens_->size()));
    }
    if (std::ranges::any_of(*scores, [](double score) { return std::isnan(score); })) {
      refuse("a score is not a number");
    }
    require_short_pieces();
    std::vector<std::size_t> order(tokens_->size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
    }
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return (*scores)[a] > (*scores)[b]; });
    boost::json::array merges;
    boost::json::array ranks;
    std::int64_t rank = -1;
    std::optional<double> last;
    for (const std::size_t token : order) {
      const std::string_view whole = (*tokens_)[token];
      for (std::size_t at = 0; at < whole.size(); at += character_at(whole, at).bytes) {
        const std::string_view left = whole.substr(0, at);
        const std::string_view right = whole.substr(at);
        if (ids_.contains(left) && ids_.contains(right)) {
          rank += last == (*scores)[token] ? 0 : 1;
          last = (*scores)[token];
          merges.push_back(boost::json::array{left, right});
          ranks.push_back(rank);
        }
        require_character(whole, at, token);
      }
    }
    return {std::move(merges), std::move(ranks)};
  }

  /// Throws Error{data} if making merges would take too much time and memory. A piece has a merge for each place where
  /// it can be cut, and each merge copies the piece's bytes. Pieces of Llama 2 have at most 48 bytes; all take 1.3 MB.
  void require_short_pieces() const {
    constexpr std::size_t most_piece_bytes = 4096;
    constexpr std::uint64_t most_split_bytes = std::uint64_t{64} << 20U;
    std::uint64_t split_bytes = 0;
    for (const std::string& token : *tokens_) {
      if (token.size() > most_piece_bytes) {
        refuse(fmt::format("the token '{}' has {} bytes, expected at most {}", printable(shown(token)), token.size(),
                           most_piece_bytes));
      }
      const auto characters =
          std::ranges::count_if(token, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; });
      split_bytes += token.size() * static_cast<std::uint64_t>(characters);
      if (split_bytes > most_split_bytes) {
        refuse(fmt::format("its tokens are too long: each token's bytes times its characters add up to more than {}",
                           most_split_bytes));
      }
    }
  }

  /// Refuses a piece with a character that is not a piece itself. SentencePiece would merge such characters, but the
  /// merges of a tokenizer.json can name only tokens.
  void require_character(std::string_view whole, std::size_t at, std::size_t token) const {
    const std::string_view character = whole.substr(at, character_at(whole, at).bytes);
    if (type_of(token) == TokenType::normal && character.size() < whole.size() && !ids_.contains(character)) {
      refuse(fmt::format("the token '{}' has the character '{}', which is no token itself: such pieces are not read",
                         printable(shown(whole)), printable(character)));
    }
  }

  const files::GgufContents& gguf_;
  std::string_view source_;
  bool by_scores_ = false;
  const std::vector<std::string>* tokens_ = nullptr;
  const std::vector<std::int64_t>* types_ = nullptr;
  TokenIds ids_;
};

}  // namespace

std::string gguf_tokenizer_json(const files::GgufContents& gguf, std::string_view source) {
  return GgufTokenizer(gguf, source).made();
}

GgufChat gguf_chat(const files::GgufContents& gguf, std::string_view source) {
  const std::vector<std::string>* const tokens = gguf.list<std::string>("tokenizer.ggml.tokens", source);
  const auto token = [&](const std::string& key) -> std::string {
    const std::optional<std::int64_t> id = gguf.integer(key, source);
    if (!id) {
      return "";
    }
    if (tokens == nullptr || *id < 0 || *id >= static_cast<std::int64_t>(tokens->size())) {
      throw Error(ErrorCode::data, fmt::format("'{}': {} = {}, expected a token below {}", source, key, *id,
                                               tokens == nullptr ? 0 : tokens->size()));
    }
    return (*tokens)[static_cast<std::size_t>(*id)];
  };
  return {.chat_template = gguf.text("tokenizer.chat_template", source).value_or(""),
          .bos = token("tokenizer.ggml.bos_token_id"),
          .eos = token("tokenizer.ggml.eos_token_id"),
          .eot = token("tokenizer.ggml.eot_token_id")};
}

}  // namespace shardrun::text
