#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::data {

enum class TokenizerKind : std::uint8_t {
  character,  ///< a token is a Unicode character of the text it was made from
  byte,       ///< a token is a byte
};

/// Tokens are 16 bits wide everywhere.
inline constexpr std::size_t max_vocabulary = 65536;

/// Turns text into tokens and back. Characters are numbered by rising code point, as nanoGPT's
/// `sorted(list(set(text)))` does.
class Tokenizer {
 public:
  [[nodiscard]] static Tokenizer of_bytes();
  /// The characters that occur in `text`. `source` names it in messages. Throws Error{data} where the text is empty,
  /// not UTF-8, or has more than `max_vocabulary` distinct characters.
  [[nodiscard]] static Tokenizer of_characters(std::string_view text, std::string_view source);
  /// What `to_json` wrote. Throws Error{data}.
  [[nodiscard]] static Tokenizer from_json(std::string_view json);

  /// One line: {"kind":"byte"} or {"kind":"char","characters":"…"}.
  [[nodiscard]] std::string to_json() const;

  [[nodiscard]] TokenizerKind kind() const noexcept { return kind_; }
  [[nodiscard]] std::int64_t vocabulary() const noexcept;

  /// Throws Error{data} that names the first character without a token, and its byte offset.
  [[nodiscard]] std::vector<std::uint16_t> encode(std::string_view text) const;
  [[nodiscard]] std::string decode(std::span<const std::uint16_t> tokens) const;
  /// Appends the text of one token. Throws Error{data} for a token past the vocabulary.
  void decode(std::int64_t token, std::string& text) const;

  bool operator==(const Tokenizer&) const = default;

 private:
  explicit Tokenizer(TokenizerKind kind) : kind_(kind) {}

  TokenizerKind kind_;
  std::vector<char32_t> characters_;  ///< rising; empty for bytes
};

/// The tokenizer of that kind for a training text.
[[nodiscard]] Tokenizer make_tokenizer(TokenizerKind kind, std::string_view text, std::string_view source);

}  // namespace shardrun::data
