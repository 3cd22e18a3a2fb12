#pragma once

#include <cstdint>
#include <string>

#include "core/data/tokenizer.h"
#include "core/data/tokens.h"
#include "core/files/steady_file.h"

namespace shardrun::data {

/// A text file before it is tokens. Its bytes are those that it had when it was opened: what is appended later is not
/// read, and where others are found in their place that is an error.
class TextFile {
 public:
  /// Reads the text once, in pieces. Throws Error{data} where it is empty or, for characters, not UTF-8, Error{io}
  /// where it is cut short.
  TextFile(files::SteadyFile file, TokenizerKind kind);
  /// The same with a tokenizer that exists already. Throws Error{data} also for a character that it does not know.
  TextFile(files::SteadyFile file, Tokenizer tokenizer);

  [[nodiscard]] const Tokenizer& tokenizer() const noexcept { return tokenizer_; }
  [[nodiscard]] const files::SteadyFile& file() const noexcept { return file_; }
  [[nodiscard]] std::int64_t tokens() const noexcept { return tokens_; }
  /// "1115394 bytes, hash 9d2c5681a3b0c7f4": of all of the text.
  [[nodiscard]] std::string fingerprint() const;
  /// Bytes of memory that `tokenise` takes.
  [[nodiscard]] std::uint64_t tokenised_bytes() const;

  /// Reads the text again and leaves its tokens, one or two bytes each, its tokenizer and its fingerprint in a memfd
  /// that nobody can change any more: for read_tokenised(), in whichever process. Throws Error{io} where the text is
  /// not what it was, or the memory cannot be had.
  [[nodiscard]] files::SteadyFile tokenise() const;

 private:
  files::SteadyFile file_;
  Tokenizer tokenizer_ = Tokenizer::of_bytes();
  std::int64_t tokens_ = 0;
  std::uint64_t hash_ = 0;
};

/// What TextFile::tokenise has left.
struct TokenizedText {
  Tokenizer tokenizer;
  TokenStream stream;
  std::string fingerprint;  ///< the text's
};

/// Throws Error{io} where it is something else.
[[nodiscard]] TokenizedText read_tokenised(files::SteadyFile file);

}  // namespace shardrun::data
