#pragma once

#include <cstdint>
#include <string>

#include "core/data/tokenizer.h"
#include "core/data/tokens.h"
#include "core/files/steady_file.h"

namespace shardrun::data {

/// A text file before it is tokenised, with the content that it had when it was opened: bytes appended later are not
/// read, and other changes are errors.
class TextFile {
 public:
  /// Reads the text once, in pieces. Throws Error{data} if it is empty or, for characters, not UTF-8; Error{io} if it
  /// was truncated.
  TextFile(files::SteadyFile file, TokenizerKind kind);
  /// The same with an existing tokenizer. Throws Error{data} also if a character is not in the tokenizer.
  TextFile(files::SteadyFile file, Tokenizer tokenizer);

  [[nodiscard]] const Tokenizer& tokenizer() const noexcept { return tokenizer_; }
  [[nodiscard]] const files::SteadyFile& file() const noexcept { return file_; }
  [[nodiscard]] std::int64_t tokens() const noexcept { return tokens_; }
  /// "1115394 bytes, hash 9d2c5681a3b0c7f4". The hash is of the whole text.
  [[nodiscard]] std::string fingerprint() const;
  /// Bytes of memory that tokenise() allocates.
  [[nodiscard]] std::uint64_t tokenised_bytes() const;

  /// Reads the text again. Writes its tokens (one, two or four bytes each), tokenizer and fingerprint to a sealed
  /// memfd, which any process can pass to read_tokenised(). Throws Error{io} if the text has changed, or if there is
  /// not enough memory.
  [[nodiscard]] files::SteadyFile tokenise() const;

 private:
  files::SteadyFile file_;
  Tokenizer tokenizer_ = Tokenizer::of_bytes();
  std::int64_t tokens_ = 0;
  std::uint64_t hash_ = 0;
};

/// The contents of a memfd that TextFile::tokenise made.
struct TokenizedText {
  Tokenizer tokenizer;
  TokenStream stream;
  std::string fingerprint;  ///< of the text
};

/// Throws Error{io} if the file is something else.
[[nodiscard]] TokenizedText read_tokenised(files::SteadyFile file);

}  // namespace shardrun::data
