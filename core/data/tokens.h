#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/files/steady_file.h"

namespace shardrun::data {

/// Where the tokens of a file are.
struct TokenLayout {
  std::size_t begin = 0;  ///< byte of the first
  std::int64_t tokens = 0;
  std::size_t token_bytes = 2;  ///< of one: 1 or 2, little-endian
  std::int64_t vocabulary = 0;  ///< above every token
};

/// A sequence of tokens in a file, which are read where they are asked for. Never empty.
class TokenStream {
 public:
  /// REQUIRES: the file has what the layout says.
  TokenStream(files::SteadyFile file, TokenLayout layout);
  /// A file of little-endian uint16 and nothing else, as nanoGPT's `train.bin`.
  /// Throws Error{data} where its size is zero or odd.
  [[nodiscard]] static TokenStream of_file(files::SteadyFile file, std::int64_t vocabulary);

  [[nodiscard]] std::int64_t size() const noexcept { return layout_.tokens; }
  [[nodiscard]] const std::string& source() const noexcept { return file_.path().native(); }
  [[nodiscard]] const files::SteadyFile& file() const noexcept { return file_; }

  /// Tokens first, first + 1, …; `to` is filled. Allocates nothing. REQUIRES: they exist. Throws Error{io} where the
  /// file was cut short, and Error{data} that names the first token that is not below the vocabulary, or Error{io}
  /// where that has come of a change.
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

/// `validation` is empty where everything is trained on.
struct TokenSplit {
  TokenRange training;
  TokenRange validation;
};

/// The first floor(fraction * tokens) and the rest. Throws as `training_count` does.
[[nodiscard]] TokenSplit split_tokens(std::int64_t tokens, double fraction, std::string_view source);

/// Throws Error{data} unless a window of `context` tokens and the one that follows it fit.
/// `part` names the tokens: "the training part of 'corpus.txt'"; `remedy` is what else helps than more text and a
/// smaller context: ", or another [data] split".
void require_context(std::int64_t tokens, std::int64_t context, std::string_view part, std::string_view remedy = "");

/// Reads the whole stream, so that read() refuses what it refuses now: call it once.
void require_tokens(const TokenStream& stream);

}  // namespace shardrun::data
