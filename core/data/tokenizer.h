#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/bpe_tokenizer.h"

namespace shardrun::data {

enum class TokenizerKind : std::uint8_t {
  character,  ///< a token is one of the Unicode characters that occur in the training text
  byte,       ///< a token is a byte
  file,       ///< tokens are those of a tokenizer.json
};

/// The largest number of distinct characters.
inline constexpr std::size_t max_vocabulary = 65536;

/// Converts text to tokens and back. Characters are numbered by rising code point, as nanoGPT's
/// `sorted(list(set(text)))` does.
class Tokenizer {
 public:
  [[nodiscard]] static Tokenizer of_bytes();
  /// Reads a tokenizer.json, or the one in a folder. Throws Error{data}.
  [[nodiscard]] static Tokenizer of_file(const std::filesystem::path& path);
  /// Reads the result of `to_json`. Throws Error{data}.
  [[nodiscard]] static Tokenizer from_json(std::string_view json);

  /// One line of JSON: {"kind":"byte"}, {"kind":"char","characters":"…"} or {"kind":"file","tokenizer":{…}}.
  [[nodiscard]] std::string to_json() const;

  [[nodiscard]] TokenizerKind kind() const noexcept { return kind_; }
  [[nodiscard]] std::int64_t vocabulary() const noexcept;

  /// Throws Error{data}, which names the first character without a token, and its byte offset.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const;
  /// Throws Error{data} for a token outside of the vocabulary.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens) const;

  /// The tokenizer of a file; null for others.
  [[nodiscard]] const text::BpeTokenizer* file() const noexcept { return file_ ? &*file_ : nullptr; }

  bool operator==(const Tokenizer& other) const;

 private:
  friend class CharacterSet;
  friend class Encoder;
  friend class Decoder;

  explicit Tokenizer(TokenizerKind kind) : kind_(kind) {}

  TokenizerKind kind_;
  std::vector<char32_t> characters_;        ///< ascending; empty for others
  std::optional<text::BpeTokenizer> file_;  ///< for kind `file`
};

// For a text that comes in pieces, in order. No piece ends within a character. `offset`: the piece's byte offset in the
// text.

/// Collects the characters that occur. `source` names the text in messages.
class CharacterSet {
 public:
  explicit CharacterSet(std::string source);

  /// Throws Error{data} if the piece is not UTF-8.
  void add(std::string_view piece, std::size_t offset);
  /// The number of characters added, including repetitions.
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  /// Throws Error{data} if there are no characters, or more than `max_vocabulary` distinct ones.
  [[nodiscard]] Tokenizer tokenizer() const;

 private:
  std::string source_;
  std::vector<bool> seen_;
  std::int64_t count_ = 0;
};

/// Converts a text in pieces to tokens. With a tokenizer of kind `file` the whole text must be one piece.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);

  /// Appends the tokens of a piece. Token: uint8_t, uint16_t or int32_t, wide enough for the vocabulary. Throws
  /// Error{data}, which names the first character without a token, and its place.
  template <typename Token>
  void encode(std::string_view piece, std::size_t offset, std::vector<Token>& tokens);

 private:
  template <typename Token>
  void encode_characters(std::string_view piece, std::size_t offset, std::vector<Token>& tokens) const;

  TokenizerKind kind_;
  std::int64_t vocabulary_;
  std::vector<std::int32_t> tokens_;  ///< by character; -1: none
  std::int64_t lines_ = 0;            ///< line ends before the current piece
  std::optional<text::BpeEncoder> file_;
};

/// Converts tokens to text as they come. REQUIRES: the tokenizer outlives it.
class Decoder {
 public:
  explicit Decoder(const Tokenizer& tokenizer);

  /// Appends the text that a token completes; with a tokenizer of kind `file`, only whole characters. Throws
  /// Error{data} for a token outside of the vocabulary.
  void decode(std::int64_t token, std::string& text);
  /// Appends the text that is left.
  void finish(std::string& text);

 private:
  const Tokenizer& tokenizer_;
  std::optional<text::BpeDecoder> file_;
};

}  // namespace shardrun::data
