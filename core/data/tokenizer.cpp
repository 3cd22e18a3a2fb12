#include "core/data/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/utf8.h"

namespace shardrun::data {
namespace {

/// Calls `use(character, offset)` for each character. Throws Error{data} if the text is not UTF-8.
template <typename Use>
void for_each_character(std::string_view text, std::size_t offset, std::string_view source, const Use& use) {
  for (std::size_t at = 0; at < text.size();) {
    if (const auto byte = static_cast<unsigned char>(text[at]); byte < 0x80) {
      use(char32_t{byte}, offset + at);
      ++at;
      continue;
    }
    const Utf8Character found = utf8_at(text, at);
    if (found.bytes == 0) {
      throw Error(ErrorCode::data, fmt::format("{} is not valid UTF-8: byte {} (0x{:02X}) starts no character; use "
                                               "[data] tokenizer = byte",
                                               source, offset + at, static_cast<unsigned char>(text[at])));
    }
    use(found.character, offset + at);
    at += found.bytes;
  }
}

std::string quoted(char32_t character) {
  std::string text;
  if (character >= 0x20 && character != 0x7F) {
    append_utf8(text, character);
    text = fmt::format("'{}' ", text);
  }
  return fmt::format("{}U+{:04X}", text, static_cast<std::uint32_t>(character));
}

[[noreturn]] void refuse(std::string_view found) {
  throw Error(ErrorCode::data, fmt::format("not a stored tokenizer: {}; expected {{\"kind\":\"byte\"}}, "
                                           "{{\"kind\":\"char\",\"characters\":\"…\"}} or "
                                           "{{\"kind\":\"file\",\"tokenizer\":{{…}}}}",
                                           found));
}

}  // namespace

Tokenizer Tokenizer::of_bytes() { return Tokenizer(TokenizerKind::byte); }

Tokenizer Tokenizer::of_file(const std::filesystem::path& path) {
  Tokenizer read(TokenizerKind::file);
  read.file_ = text::BpeTokenizer::from_file(path);
  return read;
}

Tokenizer Tokenizer::from_json(std::string_view json) {
  boost::system::error_code failed;
  const boost::json::value parsed = boost::json::parse(json, failed);
  if (failed || !parsed.is_object()) {
    refuse("no JSON object");
  }
  const boost::json::object& object = parsed.get_object();
  const boost::json::value* kind = object.if_contains("kind");
  if (kind == nullptr || !kind->is_string()) {
    refuse("no \"kind\"");
  }
  if (kind->get_string() == "byte") {
    return of_bytes();
  }
  if (kind->get_string() == "file") {
    const boost::json::value* tokenizer = object.if_contains("tokenizer");
    if (tokenizer == nullptr) {
      refuse("no \"tokenizer\"");
    }
    Tokenizer read(TokenizerKind::file);
    read.file_ = text::BpeTokenizer::from_json(boost::json::serialize(*tokenizer), "the stored tokenizer");
    return read;
  }
  if (kind->get_string() != "char") {
    refuse(fmt::format("kind \"{}\"", std::string_view(kind->get_string())));
  }
  const boost::json::value* characters = object.if_contains("characters");
  if (characters == nullptr || !characters->is_string() || characters->get_string().empty()) {
    refuse("no \"characters\"");
  }
  Tokenizer read(TokenizerKind::character);
  for_each_character(characters->get_string(), 0, "the stored tokenizer",
                     [&](char32_t character, std::size_t) { read.characters_.push_back(character); });
  const auto unordered = std::adjacent_find(read.characters_.begin(), read.characters_.end(), std::greater_equal<>());
  if (unordered != read.characters_.end() || read.characters_.size() > max_vocabulary) {
    refuse("characters that do not rise, or too many");
  }
  return read;
}

std::string Tokenizer::to_json() const {
  if (kind_ == TokenizerKind::file) {
    return fmt::format(R"({{"kind":"file","tokenizer":{}}})", file_->json());
  }
  boost::json::object object;
  if (kind_ == TokenizerKind::byte) {
    object["kind"] = "byte";
    return boost::json::serialize(object);
  }
  std::string characters;
  for (const char32_t character : characters_) {
    append_utf8(characters, character);
  }
  object["kind"] = "char";
  object["characters"] = characters;
  return boost::json::serialize(object);
}

std::int64_t Tokenizer::vocabulary() const noexcept {
  return kind_ == TokenizerKind::byte   ? 256
         : kind_ == TokenizerKind::file ? file_->vocabulary()
                                        : static_cast<std::int64_t>(characters_.size());
}

bool Tokenizer::operator==(const Tokenizer& other) const {
  return kind_ == other.kind_ && characters_ == other.characters_ &&
         (kind_ != TokenizerKind::file || file_->json() == other.file_->json());
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens;
  Encoder(*this).encode(text, 0, tokens);
  return tokens;
}

std::string Tokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  Decoder decoder(*this);
  for (const std::int32_t token : tokens) {
    decoder.decode(token, text);
  }
  decoder.finish(text);
  return text;
}

Decoder::Decoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  if (tokenizer.file_) {
    file_.emplace(*tokenizer.file_);
  }
}

void Decoder::decode(std::int64_t token, std::string& text) {
  if (token < 0 || token >= tokenizer_.vocabulary()) {
    throw Error(ErrorCode::data, fmt::format("cannot decode token {}: the tokenizer has tokens 0 to {}", token,
                                             tokenizer_.vocabulary() - 1));
  }
  if (file_) {
    file_->decode(static_cast<std::int32_t>(token), text);
  } else if (tokenizer_.kind_ == TokenizerKind::byte) {
    waiting_ += static_cast<char>(token);
    const std::size_t kept = begun_utf8(waiting_);
    text.append(waiting_, 0, waiting_.size() - kept);
    waiting_.erase(0, waiting_.size() - kept);
  } else {
    append_utf8(text, tokenizer_.characters_[static_cast<std::size_t>(token)]);
  }
}

void Decoder::finish(std::string& text) {
  if (file_) {
    file_->finish(text);
  }
  text += std::exchange(waiting_, "");
}

CharacterSet::CharacterSet(std::string source) : source_(std::move(source)) {}

void CharacterSet::add(std::string_view piece, std::size_t offset) {
  for_each_character(piece, offset, source_, [&](char32_t character, std::size_t) {
    if (character >= seen_.size()) {
      seen_.resize(character + 1);
    }
    seen_[character] = true;
    ++count_;
  });
}

Tokenizer CharacterSet::tokenizer() const {
  if (count_ == 0) {
    throw Error(ErrorCode::data, fmt::format("{} is empty: there are no characters to make tokens of", source_));
  }
  if (const auto distinct = std::count(seen_.begin(), seen_.end(), true); std::cmp_greater(distinct, max_vocabulary)) {
    throw Error(ErrorCode::data, fmt::format("{} has {} distinct characters, tokens are 16 bits and number at most {}; "
                                             "use [data] tokenizer = byte",
                                             source_, distinct, max_vocabulary));
  }
  Tokenizer made(TokenizerKind::character);
  for (char32_t character = 0; character < seen_.size(); ++character) {
    if (seen_[character]) {
      made.characters_.push_back(character);
    }
  }
  return made;
}

Encoder::Encoder(const Tokenizer& tokenizer) : kind_(tokenizer.kind()), vocabulary_(tokenizer.vocabulary()) {
  if (tokenizer.file_) {
    file_.emplace(*tokenizer.file_);
  }
  if (kind_ != TokenizerKind::character) {
    return;
  }
  if (!tokenizer.characters_.empty()) {
    tokens_.assign(std::ranges::max(tokenizer.characters_) + 1, -1);
  }
  for (std::size_t token = 0; token < tokenizer.characters_.size(); ++token) {
    tokens_[tokenizer.characters_[token]] = static_cast<std::int32_t>(token);
  }
}

template <typename Token>
void Encoder::encode(std::string_view piece, std::size_t offset, std::vector<Token>& tokens) {
  if (file_) {
    std::vector<std::int32_t> found;
    file_->encode(piece, found);
    tokens.insert(tokens.end(), found.begin(), found.end());
    return;
  }
  tokens.reserve(tokens.size() + piece.size());
  if (kind_ == TokenizerKind::byte) {
    for (const char c : piece) {
      tokens.push_back(static_cast<unsigned char>(c));
    }
    return;
  }
  encode_characters(piece, offset, tokens);
  lines_ += std::count(piece.begin(), piece.end(), '\n');
}

template <typename Token>
void Encoder::encode_characters(std::string_view piece, std::size_t offset, std::vector<Token>& tokens) const {
  for_each_character(piece, offset, "the text to encode", [&](char32_t character, std::size_t at) {
    const std::int32_t token = character < tokens_.size() ? tokens_[character] : -1;
    if (token < 0) {
      const auto end = piece.begin() + static_cast<std::ptrdiff_t>(at - offset);
      const bool is_one_line = lines_ == 0 && piece.find('\n') == std::string_view::npos;
      throw Error(
          ErrorCode::data,
          fmt::format("cannot encode {} at byte {}{}: it is none of the {} characters of the training text; leave it "
                      "out, or train with [data] tokenizer = byte",
                      quoted(character), at,
                      is_one_line ? "" : fmt::format(" (line {})", 1 + lines_ + std::count(piece.begin(), end, '\n')),
                      vocabulary_));
    }
    tokens.push_back(static_cast<Token>(token));
  });
}

template void Encoder::encode(std::string_view piece, std::size_t offset, std::vector<std::uint8_t>& tokens);
template void Encoder::encode(std::string_view piece, std::size_t offset, std::vector<std::uint16_t>& tokens);
template void Encoder::encode(std::string_view piece, std::size_t offset, std::vector<std::int32_t>& tokens);

}  // namespace shardrun::data
