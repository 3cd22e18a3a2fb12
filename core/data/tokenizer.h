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
  file,       ///< tokens are those of a tokenizer.json or GGUF file
};

/// The largest number of distinct characters for kind `character`.
inline constexpr std::size_t max_vocabulary = 65536;

/// Converts text to tokens and back. For kind `character`, tokens are numbered by rising code point, like nanoGPT's
/// `sorted(list(set(text)))`.
class Tokenizer {
 public:
  [[nodiscard]] static Tokenizer of_bytes();
  /// Reads a tokenizer.json, the one in a folder, or a GGUF file. Throws as text::BpeTokenizer::from_file() does.
  [[nodiscard]] static Tokenizer of_file(const std::filesystem::path& path);
  /// Reads the text that to_json() returns. Throws Error{data}.
  [[nodiscard]] static Tokenizer from_json(std::string_view json);

  /// The tokenizer as a line of JSON: {"kind":"byte"}, {"kind":"char","characters":"…"} or
  /// {"kind":"file","tokenizer":{…}}.
  [[nodiscard]] std::string to_json() const;

  [[nodiscard]] TokenizerKind kind() const noexcept { return kind_; }
  [[nodiscard]] std::int64_t vocabulary() const noexcept;

  /// The tokens of a text. Throws Error{data} as Encoder::encode() does.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const;
  /// The text of tokens. Throws Error{data} for a token outside of the vocabulary.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens) const;

  /// The BPE tokenizer for kind `file`; null for other kinds.
  [[nodiscard]] const text::BpeTokenizer* file() const noexcept { return file_ ? &*file_ : nullptr; }

  bool operator==(const Tokenizer& other) const;

 private:
  friend class CharacterSet;
  friend class Encoder;
  friend class Decoder;

  explicit Tokenizer(TokenizerKind kind) : kind_(kind) {}

  TokenizerKind kind_;
  std::vector<char32_t> characters_;        ///< set for kind `character`, ascending; otherwise empty
  std::optional<text::BpeTokenizer> file_;  ///< set for kind `file`
};

// The following classes take a text as consecutive pieces. A piece must not end within a character. `offset`: the byte
// offset of the piece in the text.

/// Collects the distinct characters of a text. `source` names the text in messages.
class CharacterSet {
 public:
  explicit CharacterSet(std::string source);

  /// Adds the characters of a piece. Throws Error{data} if the piece is not UTF-8.
  void add(std::string_view piece, std::size_t offset);
  /// The number of characters added, including repetitions.
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  /// A tokenizer of these characters. Throws Error{data} if there are none, or more than `max_vocabulary`.
  [[nodiscard]] Tokenizer tokenizer() const;

 private:
  std::string source_;
  std::vector<bool> seen_;
  std::int64_t count_ = 0;
};

/// Converts the pieces of a text to tokens. With a tokenizer of kind `file`, the whole text must be one piece.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);

  /// Appends a piece's tokens. `Token` (uint8_t, uint16_t or int32_t) must hold the vocabulary. Throws Error{data} for
  /// bytes that are not UTF-8 (except for kind `byte`) and characters without a token, with the offset if it is known.
  template <typename Token>
  void encode(std::string_view piece, std::size_t offset, std::vector<Token>& tokens);

 private:
  template <typename Token>
  void encode_characters(std::string_view piece, std::size_t offset, std::vector<Token>& tokens) const;

  TokenizerKind kind_;
  std::int64_t vocabulary_;
  std::vector<std::int32_t> tokens_;  ///< the token of each character; -1: none
  std::int64_t lines_ = 0;            ///< number of line ends before the current piece
  std::optional<text::BpeEncoder> file_;
};

/// Converts tokens to text one by one. REQUIRES: the tokenizer outlives this object.
class Decoder {
 public:
  explicit Decoder(const Tokenizer& tokenizer);

  /// Appends the text of a token. Bytes wait until their character is complete. Throws Error{data} for a token outside
  /// of the vocabulary.
  void decode(std::int64_t token, std::string& text);
  /// Appends the bytes that still wait.
  void finish(std::string& text);

 private:
  const Tokenizer& tokenizer_;
  std::optional<text::BpeDecoder> file_;
  std::string waiting_;  ///< bytes of a character; with a tokenizer of kind `file`, file_ keeps them
};

}  // namespace shardrun::data
