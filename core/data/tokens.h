#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/files/steady_file.h"

namespace shardrun::data {

/// Where the tokens in a file are, and their form.
struct TokenLayout {
  std::size_t begin = 0;  ///< offset of the first token
  std::int64_t tokens = 0;
  std::size_t token_bytes = 2;  ///< bytes per token: 1, 2, 4 or 8, little-endian
  bool is_signed = false;
  std::int64_t vocabulary = 0;  ///< every token is less than this
};

/// A sequence of tokens in a file, read on demand. Never empty.
class TokenStream {
 public:
  /// REQUIRES: the file has this layout.
  TokenStream(files::SteadyFile file, TokenLayout layout);
  /// A .npy file of integers [tokens], or a file that contains only tokens of `token_bytes`, 2 or 4, like nanoGPT's
  /// `train.bin`. Throws Error{data} if there are no tokens or not a whole number of them, or if the file is of another
  /// format.
  [[nodiscard]] static TokenStream of_file(files::SteadyFile file, std::int64_t vocabulary,
                                           std::size_t token_bytes = 2);

  /// Whether the file says what its tokens are: it is a .npy.
  [[nodiscard]] bool is_typed() const noexcept { return is_typed_; }
  /// Such as "uint16".
  [[nodiscard]] std::string type() const;
  [[nodiscard]] std::int64_t size() const noexcept { return layout_.tokens; }
  [[nodiscard]] const TokenLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] const std::string& source() const noexcept { return file_.path().native(); }
  [[nodiscard]] const files::SteadyFile& file() const noexcept { return file_; }

  /// Fills `to` with the tokens first, first + 1, …. Allocates nothing. REQUIRES: the stream has them. Throws Error{io}
  /// if the file was truncated or has changed; Error{data}, which names the first token outside of the vocabulary.
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

/// `validation` is empty if all tokens are for training.
struct TokenSplit {
  TokenRange training;
  TokenRange validation;
};

/// Splits tokens into the first floor(fraction * tokens) and the rest. Throws as `training_count` does.
[[nodiscard]] TokenSplit split_tokens(std::int64_t tokens, double fraction, std::string_view source);

/// Throws Error{data} unless a window of `context` tokens and the token after it fit. `part` names the tokens: "the
/// training part of 'corpus.txt'". `remedy` is a further remedy for the message: ", or another [data] split".
void require_context(std::int64_t tokens, std::int64_t context, std::string_view part, std::string_view remedy = "");

/// Throws Error{data} if the file seems to have wider tokens than the layout says: the first 512 tokens, combined in
/// pairs or fours, are also below the vocabulary, and not nearly all of them are 0. Files of fewer than 64 tokens are
/// not judged.
void require_plausible_width(const TokenStream& stream);

/// Reads the whole stream once. Throws as read() does.
void require_tokens(const TokenStream& stream);

}  // namespace shardrun::data
