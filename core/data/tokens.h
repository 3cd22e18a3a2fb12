#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/files/steady_file.h"

namespace shardrun::data {

/// The place and form of the tokens in a file.
struct TokenLayout {
  std::size_t begin = 0;  ///< offset of the first token
  std::int64_t tokens = 0;
  std::size_t token_bytes = 2;  ///< size of a token: 1, 2 or 4, little-endian and unsigned
  std::int64_t vocabulary = 0;  ///< every token is below it
};

/// A sequence of tokens in a file, read on demand. Never empty.
class TokenStream {
 public:
  /// REQUIRES: the file is as the layout says.
  TokenStream(files::SteadyFile file, TokenLayout layout);
  /// A file of nothing but tokens of 2 or 4 bytes, as nanoGPT's `train.bin`. Throws Error{data} if its size is zero or
  /// not a whole number of tokens, or if it begins as another format.
  [[nodiscard]] static TokenStream of_file(files::SteadyFile file, std::int64_t vocabulary,
                                           std::size_t token_bytes = 2);

  [[nodiscard]] std::int64_t size() const noexcept { return layout_.tokens; }
  [[nodiscard]] const TokenLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] const std::string& source() const noexcept { return file_.path().native(); }
  [[nodiscard]] const files::SteadyFile& file() const noexcept { return file_; }

  /// Fills `to` with the tokens first, first + 1, …. Allocates nothing. REQUIRES: they exist. Throws Error{io} if the
  /// file was cut short; Error{data} that names the first token outside of the vocabulary, or Error{io} instead if the
  /// file has changed.
  void read(std::int64_t first, std::span<std::int32_t> to) const;

 private:
  template <typename Token>
  void read_as(std::int64_t first, std::span<std::int32_t> to) const;

  files::SteadyFile file_;
  TokenLayout layout_;
};

/// Consecutive tokens of a stream.
struct TokenRange {
  std::int64_t first = 0;
  std::int64_t size = 0;
};

/// `validation` is empty if everything is for training.
struct TokenSplit {
  TokenRange training;
  TokenRange validation;
};

/// The first floor(fraction * tokens) and the rest. Throws as `training_count` does.
[[nodiscard]] TokenSplit split_tokens(std::int64_t tokens, double fraction, std::string_view source);

/// Throws Error{data} unless a window of `context` tokens and the token after it fit. `part` names the tokens: "the
/// training part of 'corpus.txt'". `remedy` is a further remedy for the message: ", or another [data] split".
void require_context(std::int64_t tokens, std::int64_t context, std::string_view part, std::string_view remedy = "");

/// Throws Error{data} if the file looks as if its tokens had more bytes than the layout says: the first 512 tokens,
/// taken two by two or four by four, are tokens below the vocabulary too, and not nearly all of them are 0. Files of
/// fewer than 64 tokens are not judged.
void require_plausible_width(const TokenStream& stream);

/// Reads the whole stream once and throws as read() does.
void require_tokens(const TokenStream& stream);

}  // namespace shardrun::data
