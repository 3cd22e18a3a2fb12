#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <initializer_list>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/files/gguf.h"
#include "core/files/json.h"
#include "core/files/mapped_file.h"
#include "core/text/bpe_tokenizer.h"
#include "core/text/gguf_tokenizer.h"
#include "core/text/parts.h"
#include "core/text/unicode.h"

namespace shardrun::text {
namespace {

constexpr std::size_t most_file_bytes = std::size_t{1} << 28U;

std::string described(const boost::json::value& json) {
  const std::string text = boost::json::serialize(json);
  return json.is_object()  ? fmt::format("an object of {} keys", json.get_object().size())
         : json.is_array() ? fmt::format("an array of {} elements", json.get_array().size())
                           : printable(shown(text));
}

/// A JSON value of the file with its path for messages, such as model.merges[3].
class Place {
 public:
  Place(const boost::json::value& json, std::string_view source, std::string path = "")
      : json_(&json), source_(source), path_(std::move(path)) {}

  [[noreturn]] void refuse(std::string_view why) const {
    throw Error(ErrorCode::data, fmt::format("cannot read {}: {}: {}", source_, path_.empty() ? "it" : path_, why));
  }
  [[noreturn]] void expected(std::string_view what) const {
    refuse(fmt::format("expected {}, found {}", what, described(*json_)));
  }

  [[nodiscard]] bool is_null() const { return json_->is_null(); }
  [[nodiscard]] const boost::json::object& object() const {
    return json_->is_object() ? json_->get_object() : (expected("an object"), json_->get_object());
  }
  [[nodiscard]] const boost::json::array& array() const {
    return json_->is_array() ? json_->get_array() : (expected("an array"), json_->get_array());
  }
  [[nodiscard]] std::string_view text() const {
    return json_->is_string() ? std::string_view(json_->get_string()) : (expected("a string"), std::string_view());
  }
  [[nodiscard]] bool flag() const { return json_->is_bool() ? json_->get_bool() : (expected("true or false"), false); }
  [[nodiscard]] std::int64_t integer() const {
    if (!json_->is_int64() || json_->get_int64() < 0) {
      expected("a whole number from 0 on");
    }
    return json_->get_int64();
  }

  [[nodiscard]] std::optional<Place> find(std::string_view key) const {
    const boost::json::value* const found = object().if_contains(key);
    return found == nullptr ? std::nullopt : std::optional(below(*found, key));
  }
  [[nodiscard]] Place at(std::string_view key) const {
    const std::optional<Place> found = find(key);
    return found ? *found : (refuse(fmt::format("there is no \"{}\"", key)), *this);
  }
  [[nodiscard]] bool flag(std::string_view key, bool otherwise) const {
    const std::optional<Place> found = find(key);
    return found ? found->flag() : otherwise;
  }
  [[nodiscard]] std::vector<Place> elements() const {
    std::vector<Place> places;
    for (const boost::json::value& element : array()) {
      places.emplace_back(element, source_, fmt::format("{}[{}]", path_, places.size()));
    }
    return places;
  }
  [[nodiscard]] Place below(const boost::json::value& json, std::string_view key) const {
    return {json, source_, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, printable(shown(key)))};
  }

  /// Throws Error{data} if the object has a key that is not in `keys`. To ignore the key could change the tokens.
  void allow(std::initializer_list<std::string_view> keys) const {
    for (const auto& field : object()) {
      if (std::ranges::find(keys, std::string_view(field.key())) == keys.end()) {
        refuse(fmt::format("the key \"{}\" is not known", printable(shown(field.key()))));
      }
    }
  }

 private:
  const boost::json::value* json_;
  std::string_view source_;
  std::string path_;
};

/// Calls `read` for a part of the file, such as a decoder. If its type is "Sequence",
/// calls `read` for each of its parts.
template <typename Read>
void for_each_part(const Place& part, std::string_view list, const Read& read) {
  if (part.is_null()) {
    return;
  }
  if (part.at("type").text() == "Sequence") {
    part.allow({"type", list});
    for (const Place& element : part.at(list).elements()) {
      for_each_part(element, list, read);
    }
    return;
  }
  read(part);
}

[[noreturn]] void refuse_type(const Place& part, std::string_view known) {
  part.at("type").refuse(
      fmt::format("\"{}\" is not supported; {} are", printable(shown(part.at("type").text())), known));
}

std::string_view pattern_text(const Place& pattern, std::string_view kind) {
  pattern.allow({"String", "Regex"});
  const std::optional<Place> found = pattern.find(kind);
  if (!found) {
    pattern.refuse(fmt::format("expected a \"{}\"", kind));
  }
  if (found->text().empty()) {
    found->refuse("it is empty");
  }
  return found->text();
}

void read_normalizer(const Place& part, std::vector<NormalizerStep>& steps) {
  const std::string_view type = part.at("type").text();
  if (type == "NFC") {
    part.allow({"type"});
    steps.push_back({NormalizerStep::Kind::nfc, "", ""});
  } else if (type == "Prepend") {
    part.allow({"type", "prepend"});
    steps.push_back({NormalizerStep::Kind::prepend, "", std::string(part.at("prepend").text())});
  } else if (type == "Replace") {
    part.allow({"type", "pattern", "content"});
    steps.push_back({NormalizerStep::Kind::replace, std::string(pattern_text(part.at("pattern"), "String")),
                     std::string(part.at("content").text())});
  } else {
    refuse_type(part, "NFC, Prepend, Replace and Sequence");
  }
}

void read_split(const Place& part, std::vector<SplitStep>& steps) {
  part.allow({"type", "pattern", "behavior", "invert"});
  const Place behavior = part.at("behavior");
  const bool invert = part.at("invert").flag();
  const Place pattern = part.at("pattern");
  if (pattern.find("Regex")) {
    const std::string_view expression = pattern_text(pattern, "Regex");
    const std::optional<Scanner> scanner = scanner_of(expression);
    if (!scanner) {
      pattern.at("Regex").refuse(
          fmt::format("the expression {} is not one of those that are known: those of GPT-2, "
                      "Llama 3, Qwen 2, Mistral's tekken and o200k",
                      printable(expression)));
    }
    // Known expressions match every text without gaps, so both settings have the same effect.
    if (behavior.text() != "Isolated" && (behavior.text() != "Removed" || !invert)) {
      behavior.expected("\"Isolated\", or \"Removed\" with invert");
    }
    steps.push_back({SplitStep::Kind::scan, *scanner, "", {}});
    return;
  }
  if (invert) {
    part.at("invert").expected("false");
  }
  if (behavior.text() != "MergedWithPrevious" && behavior.text() != "Isolated") {
    behavior.expected("\"MergedWithPrevious\" or \"Isolated\"");
  }
  steps.push_back({behavior.text() == "Isolated" ? SplitStep::Kind::around : SplitStep::Kind::behind,
                   nullptr,
                   std::string(pattern_text(pattern, "String")),
                   {}});
}

std::string one_character(const Place& place) {
  const std::string_view text = place.text();
  if (text.empty() || character_at(text, 0).bytes != text.size()) {
    place.expected("one character");
  }
  return std::string(text);
}

/// The prepend scheme of a Metaspace part. Files of tokenizers before 0.14 have only add_prefix_space.
SplitStep::Prepends prepends_of(const Place& part) {
  const std::optional<Place> scheme = part.find("prepend_scheme");
  if (!scheme) {
    return part.flag("add_prefix_space", true) ? SplitStep::Prepends::always : SplitStep::Prepends::never;
  }
  if (scheme->text() == "always") {
    return SplitStep::Prepends::always;
  }
  if (scheme->text() == "first") {
    return SplitStep::Prepends::first;
  }
  return scheme->text() == "never" ? SplitStep::Prepends::never
                                   : (scheme->expected("\"always\", \"first\" or \"never\""), SplitStep::Prepends{});
}

void allow_metaspace(const Place& part) {
  part.allow({"type", "replacement", "prepend_scheme", "split", "str_rep", "add_prefix_space"});
}

void allow_byte_level(const Place& part) { part.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"}); }

/// Reads one pre-tokenizer and appends its steps. Returns whether later steps get text in the byte-level alphabet.
bool read_pre_tokenizer(const Place& part, std::vector<SplitStep>& steps) {
  const std::string_view type = part.at("type").text();
  if (type == "ByteLevel") {
    allow_byte_level(part);
    if (part.flag("add_prefix_space", true)) {
      steps.push_back({SplitStep::Kind::prefix_blank, nullptr, "", {}});
    }
    if (part.flag("use_regex", true)) {
      steps.push_back({SplitStep::Kind::scan, *scanner_of(*expression_of("gpt2")), "", {}});
    }
    return true;
  }
  if (type == "Split") {
    read_split(part, steps);
  } else if (type == "Digits") {
    part.allow({"type", "individual_digits"});
    steps.push_back(
        {part.at("individual_digits").flag() ? SplitStep::Kind::digits : SplitStep::Kind::digit_runs, nullptr, "", {}});
  } else if (type == "Metaspace") {
    allow_metaspace(part);
    steps.push_back({part.flag("split", true) ? SplitStep::Kind::before_marks : SplitStep::Kind::marks, nullptr,
                     one_character(part.at("replacement")), prepends_of(part)});
  } else {
    refuse_type(part, "ByteLevel, Split, Digits, Metaspace and Sequence");
  }
  return false;
}

void read_pre_tokenizers(const Place& root, Parts& parts, BytePairs::Settings& settings) {
  const std::optional<Place> place = root.find("pre_tokenizer");
  if (!place) {
    return;
  }
  for_each_part(*place, "pretokenizers", [&](const Place& part) {
    if (settings.byte_level) {
      part.refuse("expected nothing after ByteLevel");
    }
    settings.byte_level = read_pre_tokenizer(part, parts.splits);
  });
}

void read_decoder(const Place& root, TokenDecoder& decoder) {
  const std::optional<Place> place = root.find("decoder");
  if (!place || place->is_null()) {
    decoder.separator = " ";  // the default of Python's tokenizers
    return;
  }
  bool is_fused = false;
  bool is_first = true;
  for_each_part(*place, "decoders", [&](const Place& part) {
    const std::string_view type = part.at("type").text();
    const bool may_change_tokens = !is_fused && !decoder.byte_fallback;
    if (type == "ByteLevel" && is_first) {
      allow_byte_level(part);
      decoder.byte_level = is_fused = true;
    } else if (type == "Metaspace" && is_first) {
      allow_metaspace(part);
      const std::string mark = one_character(part.at("replacement"));
      decoder.dropped_of_first = prepends_of(part) == SplitStep::Prepends::never ? "" : mark;
      decoder.replacements.emplace_back(mark, " ");
    } else if (type == "Replace" && may_change_tokens) {
      part.allow({"type", "pattern", "content"});
      decoder.replacements.emplace_back(pattern_text(part.at("pattern"), "String"), part.at("content").text());
    } else if (type == "ByteFallback" && may_change_tokens) {
      part.allow({"type"});
      decoder.byte_fallback = true;
    } else if (type == "Fuse") {
      part.allow({"type"});
      is_fused = true;
    } else if (type == "Strip" && is_fused && decoder.strips == 0) {
      part.allow({"type", "content", "start", "stop"});
      if (part.at("stop").integer() != 0) {
        part.at("stop").expected("0");
      }
      const std::string character = one_character(part.at("content"));
      if (character.size() > 1) {
        part.at("content").expected("an ASCII character");
      }
      decoder.stripped = character.front();
      decoder.strips = part.at("start").integer();
    } else {
      refuse_type(part, "ByteLevel or Metaspace at first, then Replace, ByteFallback, Fuse and Strip, in this order,");
    }
    is_first = false;
  });
}

/// Reads the tokens that TemplateProcessing puts around one text.
void read_template(const Place& part, Parts& parts) {
  part.allow({"type", "single", "pair", "special_tokens"});
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> behind;
  bool is_behind = false;
  for (const Place& element : part.at("single").elements()) {
    element.allow({"SpecialToken", "Sequence"});
    if (const std::optional<Place> token = element.find("SpecialToken")) {
      const Place known = part.at("special_tokens").at(token->at("id").text());
      for (const Place& id : known.at("ids").elements()) {
        if (id.integer() >= static_cast<std::int64_t>(parts.contents.size())) {
          id.expected(fmt::format("a token below {}", parts.contents.size()));
        }
        (is_behind ? behind : before).push_back(static_cast<std::int32_t>(id.integer()));
      }
    } else if (is_behind || element.at("Sequence").at("id").text() != "A") {
      element.expected("the sequence A, once");
    } else {
      is_behind = true;
    }
  }
  if (!is_behind) {
    part.at("single").refuse("expected the sequence A in it");
  }
  parts.before.insert(parts.before.begin(), before.begin(), before.end());
  parts.behind.insert(parts.behind.end(), behind.begin(), behind.end());
}

void read_post_processor(const Place& root, Parts& parts) {
  const std::optional<Place> place = root.find("post_processor");
  if (!place) {
    return;
  }
  for_each_part(*place, "processors", [&](const Place& part) {
    const std::string_view type = part.at("type").text();
    if (type == "TemplateProcessing") {
      read_template(part, parts);
    } else if (type == "ByteLevel") {
      allow_byte_level(part);  // ByteLevel as a post-processor changes only offsets
    } else {
      refuse_type(part, "TemplateProcessing, ByteLevel and Sequence");
    }
  });
}

void read_vocabulary(const Place& vocab, Parts& parts) {
  const std::size_t count = vocab.object().size();
  parts.contents.resize(count);
  parts.ids.reserve(count);
  std::vector<bool> is_taken(count);
  for (const auto& field : vocab.object()) {
    const std::int64_t* const number = field.value().if_int64();
    const auto id = static_cast<std::size_t>(number == nullptr ? -1 : *number);
    if (id >= count || is_taken[id]) {
      const Place place = vocab.below(field.value(), field.key());
      static_cast<void>(place.integer());
      place.refuse(
          id >= count
              ? fmt::format("its id is {}, and there are {} tokens, whose ids must be 0 to {}", id, count, count - 1)
              : fmt::format("its id {} is also that of \"{}\"", id, printable(shown(parts.contents[id]))));
    }
    is_taken[id] = true;
    parts.contents[id] = std::string_view(field.key());
    parts.ids.emplace(field.key(), static_cast<std::int32_t>(id));
  }
}

[[noreturn]] void refuse_unknown(const Place& place, std::string_view content) {
  place.refuse(fmt::format("\"{}\" is not in model.vocab", printable(shown(content))));
}

/// The two tokens of a merge: "a b" or ["a", "b"]; nothing if the JSON is neither.
std::optional<std::pair<std::string_view, std::string_view>> pair_in(const boost::json::value& json) {
  if (json.is_string()) {
    const std::string_view text = json.get_string();
    const std::size_t blank = text.find(' ');
    return blank == std::string_view::npos || text.find(' ', blank + 1) != std::string_view::npos
               ? std::nullopt
               : std::optional(std::pair(text.substr(0, blank), text.substr(blank + 1)));
  }
  if (json.is_array() && json.get_array().size() == 2 && json.get_array()[0].is_string() &&
      json.get_array()[1].is_string()) {
    return std::pair(std::string_view(json.get_array()[0].get_string()),
                     std::string_view(json.get_array()[1].get_string()));
  }
  return std::nullopt;
}

std::vector<BytePairs::Merge> read_merges(const Place& list, const Parts& parts) {
  std::vector<BytePairs::Merge> merges;
  merges.reserve(list.array().size());
  std::string whole;
  for (const boost::json::value& json : list.array()) {
    const auto place = [&] { return list.below(json, fmt::format("[{}]", merges.size())); };
    const auto pair = pair_in(json);
    if (!pair) {
      place().expected(json.is_string() ? "two tokens with a blank between them" : "\"a b\" or [\"a\", \"b\"]");
    }
    const auto id_of = [&](std::string_view content) {
      const auto found = parts.ids.find(content);
      return found != parts.ids.end() ? found->second : (refuse_unknown(place(), content), -1);
    };
    whole.assign(pair->first).append(pair->second);
    merges.push_back({id_of(pair->first), id_of(pair->second), id_of(whole)});
  }
  return merges;
}

/// Sets the ranks of merges. `merge_ranks` is a key of our own, written for GGUF files, in which merges that make
/// tokens of equal score have equal ranks. Without it, each merge's rank is its index.
void read_ranks(const Place& model, std::vector<BytePairs::Merge>& merges) {
  const std::optional<Place> ranks = model.find("merge_ranks");
  if (ranks && ranks->array().size() != merges.size()) {
    ranks->expected(fmt::format("an array of {} elements", merges.size()));
  }
  for (std::size_t i = 0; i < merges.size(); ++i) {
    merges[i].rank = static_cast<std::int32_t>(i);
    if (!ranks) {
      continue;
    }
    const Place rank = ranks->below(ranks->array()[i], fmt::format("[{}]", i));
    if (rank.integer() >= static_cast<std::int64_t>(merges.size())) {
      rank.expected(fmt::format("a number below {}", merges.size()));
    }
    merges[i].rank = static_cast<std::int32_t>(rank.integer());
  }
}

void read_model(const Place& model, Parts& parts, BytePairs::Settings settings) {
  if (const std::optional<Place> type = model.find("type"); type && type->text() != "BPE") {
    type->refuse(fmt::format("\"{}\" is not supported; BPE is", printable(shown(type->text()))));
  }
  model.allow({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
               "byte_fallback", "ignore_merges", "vocab", "merges", "merge_ranks"});
  for (const std::string_view key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const std::optional<Place> found = model.find(key);
    if (found && !found->is_null() && (key == "dropout" || !found->text().empty())) {
      found->expected("null");
    }
  }
  read_vocabulary(model.at("vocab"), parts);
  settings.byte_fallback = model.flag("byte_fallback", false);
  settings.ignore_merges = model.flag("ignore_merges", false);
  settings.fuse_unknown = model.flag("fuse_unk", false);
  if (const std::optional<Place> unknown = model.find("unk_token"); unknown && !unknown->is_null()) {
    const auto found = parts.ids.find(unknown->text());
    settings.unknown = found != parts.ids.end() ? found->second : (refuse_unknown(*unknown, unknown->text()), -1);
  }
  if (settings.byte_level && settings.byte_fallback) {
    for (int byte = 0; byte < 256; ++byte) {
      if (!parts.ids.contains(alphabet_of_bytes(std::string(1, static_cast<char>(byte))))) {
        model.at("byte_fallback")
            .refuse(fmt::format(
                "expected false, as the pre-tokenizer ByteLevel makes bytes, and byte 0x{:02X} has no token", byte));
      }
    }
    settings.byte_fallback = false;  // each byte already has a token, so no fallback is needed
  }
  std::vector<BytePairs::Merge> merges = read_merges(model.at("merges"), parts);
  read_ranks(model, merges);
  parts.model = BytePairs(parts.ids, merges, settings);
}

AddedToken read_added_token(const Place& place) {
  place.allow({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  return {.id = static_cast<std::int32_t>(std::min<std::int64_t>(place.at("id").integer(), INT32_MAX)),
          .content = std::string(place.at("content").text()),
          .single_word = place.at("single_word").flag(),
          .left_strip = place.at("lstrip").flag(),
          .right_strip = place.at("rstrip").flag(),
          .normalized = place.at("normalized").flag(),
          .special = place.at("special").flag()};
}

/// A limit for the bytes of an added token. The search takes at worst the text's size times the longest token's size.
constexpr std::size_t most_token_bytes = 1024;

/// Reads the added tokens. Throws Error{data} unless a token of the vocabulary has its id, and new ones the next ids.
void read_added_tokens(const Place& root, Parts& parts) {
  const std::optional<Place> list = root.find("added_tokens");
  std::vector<AddedToken> tokens;
  TokenIds seen;
  for (const Place& place : list ? list->elements() : std::vector<Place>()) {
    AddedToken token = read_added_token(place);
    if (token.content.empty()) {
      place.at("content").refuse("it is empty");
    }
    if (token.content.size() > most_token_bytes) {
      place.at("content").refuse(
          fmt::format("it has {} bytes, expected at most {}", token.content.size(), most_token_bytes));
    }
    if (!seen.emplace(token.content, token.id).second) {
      place.at("content").refuse(fmt::format("\"{}\" occurs twice", printable(shown(token.content))));
    }
    const auto found = parts.ids.find(token.content);
    const std::int32_t id = found != parts.ids.end() ? found->second : static_cast<std::int32_t>(parts.contents.size());
    if (token.id != id) {
      place.at("id").refuse(fmt::format("\"{}\" has the id {}; {} {}", printable(shown(token.content)), token.id,
                                        found != parts.ids.end() ? "in model.vocab it is" : "the next free one is",
                                        id));
    }
    if (found == parts.ids.end()) {
      parts.contents.push_back(token.content);
      parts.ids.emplace(token.content, id);
    }
    tokens.push_back(std::move(token));
  }
  parts.is_special.resize(parts.contents.size());
  for (const bool is_special : {true, false}) {
    for (const AddedToken& token : tokens) {
      if (token.special != is_special) {
        continue;
      }
      parts.is_special[static_cast<std::size_t>(token.id)] = is_special;
      std::string scratch;
      if (token.normalized) {
        const std::string_view content = normalized(parts.normalizer, token.content, scratch);
        parts.normalized_tokens.add(token, content);
        parts.contents[static_cast<std::size_t>(token.id)] = content;  // decoding returns the normalized text
      } else {
        parts.raw_tokens.add(token, token.content);
      }
    }
  }
}

}  // namespace

BpeTokenizer BpeTokenizer::from_json(std::string_view json, std::string_view source) {
  const boost::json::value parsed = files::parse_json_strictly(json, source);
  const Place root(parsed, source);
  root.allow({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
              "decoder", "model"});
  for (const std::string_view key : {"truncation", "padding"}) {
    if (const std::optional<Place> found = root.find(key); found && !found->is_null()) {
      found->expected("null: texts are neither cut nor filled up");
    }
  }
  const auto parts = std::make_shared<Parts>();
  if (const std::optional<Place> normalizer = root.find("normalizer")) {
    for_each_part(*normalizer, "normalizers", [&](const Place& part) { read_normalizer(part, parts->normalizer); });
  }
  BytePairs::Settings settings;
  read_pre_tokenizers(root, *parts, settings);
  read_decoder(root, parts->decoder);
  read_model(root.at("model"), *parts, settings);
  read_added_tokens(root, *parts);
  if (parts->contents.empty()) {
    root.at("model").at("vocab").refuse("it is empty");
  }
  read_post_processor(root, *parts);
  parts->json = boost::json::serialize(parsed);
  return BpeTokenizer(parts);
}

BpeTokenizer BpeTokenizer::from_file(const std::filesystem::path& path) {
  if (files::is_gguf(path)) {
    const std::string json = gguf_tokenizer_json(files::parse_gguf(files::SteadyFile(path)), path.native());
    return from_json(json, fmt::format("'{}'", path.native()));
  }
  std::error_code none;
  std::filesystem::path file = path;
  if (std::filesystem::is_directory(path, none)) {
    file = path / "tokenizer.json";
    if (!std::filesystem::exists(file, none)) {
      throw Error(ErrorCode::data, fmt::format("'{}' has no tokenizer.json, the form in which tokenizers are read: "
                                               "Python's tokenizers saves it by tokenizer.save()",
                                               path.native()));
    }
  }
  return from_json(files::read_text_file(file, most_file_bytes), fmt::format("'{}'", file.native()));
}

}  // namespace shardrun::text
