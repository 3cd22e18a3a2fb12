#pragma once

#include <cstdint>
#include <string>

#include "core/data/tokenizer.h"
#include "core/data/tokens.h"
#include "core/files/steady_file.h"

namespace shardrun::data {

/// A text file that is not tokenised yet, as it was when it was opened. Bytes appended later are not read. Other
/// changes are errors.
class TextFile {
 public:
  /// Reads the text once, in pieces, and makes a tokenizer of this kind. Throws Error{data} if the text is empty or too
  /// large for the memory, or if its characters are not UTF-8 or too many; Error{io} if it was truncated.
  TextFile(files::SteadyFile file, TokenizerKind kind);
  /// Reads the text once, for an existing tokenizer. Throws Error{data} also as Encoder::encode() does.
  TextFile(files::SteadyFile file, Tokenizer tokenizer);

  [[nodiscard]] const Tokenizer& tokenizer() const noexcept { return tokenizer_; }
  [[nodiscard]] const files::SteadyFile& file() const noexcept { return file_; }
  [[nodiscard]] std::int64_t tokens() const noexcept { return tokens_; }
  /// Identifies the whole text: "1115394 bytes, hash 9d2c5681a3b0c7f4".
  [[nodiscard]] std::string fingerprint() const;
  /// The memory that tokenise() allocates, in bytes.
  [[nodiscard]] std::uint64_t tokenised_bytes() const;

  /// Reads the text again. Writes its tokens (1, 2 or 4 bytes each), tokenizer and fingerprint to a sealed memfd, which
  /// other processes can pass to read_tokenised(). Throws Error{io} if the text has changed or memory is short.
  [[nodiscard]] files::SteadyFile tokenise() const;

 private:
  files::SteadyFile file_;
  Tokenizer tokenizer_ = Tokenizer::of_bytes();
  std::int64_t tokens_ = 0;
  std::uint64_t hash_ = 0;
};

/// The content of a memfd that TextFile::tokenise() made.
struct TokenizedText {
  Tokenizer tokenizer;
  TokenStream stream;
  std::string fingerprint;  ///< identifies the text file
};

/// Reads a memfd of TextFile::tokenise(). Throws Error{io} for any other file.
[[nodiscard]] TokenizedText read_tokenised(files::SteadyFile file);

}  // namespace shardrun::data
