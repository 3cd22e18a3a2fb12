#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/files/steady_file.h"

namespace shardrun::data {

/// Where the tokens of a file are, and their type.
struct TokenLayout {
  std::size_t begin = 0;  ///< offset of the first token
  std::int64_t tokens = 0;
  std::size_t token_bytes = 2;  ///< bytes per token, little-endian: 1, 2, 4 or 8
  bool is_signed = false;
  std::int64_t vocabulary = 0;  ///< every token must be below this
};

/// The tokens of a file, which are read on demand. A file has at least one token.
class TokenStream {
 public:
  /// REQUIRES: the file's tokens have this layout.
  TokenStream(files::SteadyFile file, TokenLayout layout);
  /// Opens a .npy file of integers [tokens], or a file that has only tokens of `token_bytes` (2 or 4) bytes, like
  /// nanoGPT's `train.bin`. Throws Error{data} if there are no tokens, if the last one is incomplete,
  /// or for another format.
  [[nodiscard]] static TokenStream of_file(files::SteadyFile file, std::int64_t vocabulary,
                                           std::size_t token_bytes = 2);

  /// Whether the file itself says the type of its tokens, as a .npy file does.
  [[nodiscard]] bool is_typed() const noexcept { return is_typed_; }
  /// The type of the tokens, such as "uint16".
  [[nodiscard]] std::string type() const;
  [[nodiscard]] std::int64_t size() const noexcept { return layout_.tokens; }
  [[nodiscard]] const TokenLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] const std::string& source() const noexcept { return file_.path().native(); }
  [[nodiscard]] const files::SteadyFile& file() const noexcept { return file_; }

  /// Fills `to` with the tokens first, first + 1 and so on. Allocates nothing. REQUIRES: the stream has these tokens.
  /// Throws Error{io} if the file was truncated. For a token outside of the vocabulary, throws Error{io} if the file
  /// has changed, and otherwise Error{data} with the first such token.
  void read(std::int64_t first, std::span<std::int32_t> to) const;

 private:
  template <typename Token>
  void read_as(std::int64_t first, std::span<std::int32_t> to) const;

  [[nodiscard]] static TokenStream of_npy(files::SteadyFile file, std::int64_t vocabulary);

  files::SteadyFile file_;
  TokenLayout layout_;
  bool is_typed_ = false;
};

/// Consecutive tokens of a stream.
struct TokenRange {
  std::int64_t first = 0;
  std::int64_t size = 0;
};

/// The ranges of training and validation data. `validation` is empty if all tokens are for training.
struct TokenSplit {
  TokenRange training;
  TokenRange validation;
};

/// Splits tokens: the first floor(fraction * tokens) are training data, the rest validation data. Throws as
/// training_count() does.
[[nodiscard]] TokenSplit split_tokens(std::int64_t tokens, double fraction, std::string_view source);

/// Throws Error{data} if there are fewer than context + 1 tokens (a window and its last target). For the message,
/// `part` names the tokens ("the training part of 'corpus.txt'"), and `remedy` adds advice (", or another [data]
/// split").
void require_context(std::int64_t tokens, std::int64_t context, std::string_view part, std::string_view remedy = "");

/// Throws Error{data} if the file's tokens seem wider than the layout says: the first 512 tokens, read as numbers of
/// twice or four times the width, are also below the vocabulary, and not nearly all 0. Files of fewer than 64 tokens
/// are not checked.
void require_plausible_width(const TokenStream& stream);

/// Reads all tokens once. Throws as read() does.
void require_tokens(const TokenStream& stream);

}  // namespace shardrun::data
