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
  /// Reads the result of `to_json`. Throws Error{data}.
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
  friend class CharacterSet;
  friend class Encoder;

  explicit Tokenizer(TokenizerKind kind) : kind_(kind) {}

  TokenizerKind kind_;
  std::vector<char32_t> characters_;  ///< ascending; empty for bytes
};

// For a text that comes in pieces, in order. No piece ends within a character. `offset`: of the piece in the text.

/// Collects the characters that occur. `source` names the text in messages.
class CharacterSet {
 public:
  explicit CharacterSet(std::string source);

  /// Throws Error{data} if the piece is not UTF-8.
  void add(std::string_view piece, std::size_t offset);
  /// Number of characters added, repetitions included.
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  /// Throws Error{data} if there are no characters, or more than `max_vocabulary` distinct ones.
  [[nodiscard]] Tokenizer tokenizer() const;

 private:
  std::string source_;
  std::vector<bool> seen_;
  std::int64_t count_ = 0;
};

/// Turns a text in pieces into tokens.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);

  /// Appends the tokens of a piece. Token: uint8_t or uint16_t, wide enough for the vocabulary. Throws Error{data} that
  /// names the first character without a token, and its place.
  template <typename Token>
  void encode(std::string_view piece, std::size_t offset, std::vector<Token>& tokens);

 private:
  template <typename Token>
  void encode_characters(std::string_view piece, std::size_t offset, std::vector<Token>& tokens) const;

  TokenizerKind kind_;
  std::int64_t vocabulary_;
  std::vector<std::int32_t> tokens_;  ///< by character; -1: none
  std::int64_t lines_ = 0;            ///< line ends before the piece
};

}  // namespace shardrun::data
