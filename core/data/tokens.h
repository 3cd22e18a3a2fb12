#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/tokenizer.h"
#include "core/files/mapped_file.h"

namespace shardrun::data {

/// A sequence of 16-bit tokens, in memory or mapped from a file. Never empty.
class TokenStream {
 public:
  /// `source` names the tokens in messages. Throws Error{data} where there are none.
  TokenStream(std::vector<std::uint16_t> tokens, std::string source);
  /// A file of little-endian uint16 and nothing else, as nanoGPT's `train.bin`; mapped, not read.
  /// Throws Error{data} where its size is zero or odd, and as files::MappedFile does.
  [[nodiscard]] static TokenStream map(const std::filesystem::path& path);

  [[nodiscard]] std::span<const std::uint16_t> tokens() const noexcept;
  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(tokens().size()); }
  [[nodiscard]] const std::string& source() const noexcept { return source_; }

 private:
  explicit TokenStream(files::MappedFile file) : mapped_(std::move(file)), source_(mapped_->path().native()) {}

  std::vector<std::uint16_t> owned_;
  std::optional<files::MappedFile> mapped_;
  std::string source_;
};

/// A text file as tokens, and the tokenizer that made them.
struct TokenizedText {
  Tokenizer tokenizer;
  TokenStream stream;
};

/// Throws Error{data} where the file is empty or, for characters, not UTF-8; and as files::MappedFile does.
[[nodiscard]] TokenizedText read_text(const std::filesystem::path& path, TokenizerKind kind);
/// The same with a tokenizer that exists already. Throws Error{data} also for a character that it does not know.
[[nodiscard]] TokenStream read_text(const std::filesystem::path& path, const Tokenizer& tokenizer);

/// Views into a stream, which must outlive them. `validation` is empty where everything is trained on.
struct TokenSplit {
  std::span<const std::uint16_t> training;
  std::span<const std::uint16_t> validation;
};

/// The first floor(fraction * size) tokens and the rest. Throws as `training_count` does.
[[nodiscard]] TokenSplit split_tokens(const TokenStream& stream, double fraction);

/// Throws Error{data} unless a window of `context` tokens and the one that follows it fit.
/// `part` names the tokens: "the training part of 'corpus.txt'"; `remedy` is what else helps than more text and a
/// smaller context: ", or another [data] split".
void require_context(std::span<const std::uint16_t> tokens, std::int64_t context, std::string_view part,
                     std::string_view remedy = "");

/// Throws Error{data} that names the first token that is not below `vocabulary`. Reads the whole stream: call it once.
void require_vocabulary(const TokenStream& stream, std::int64_t vocabulary);

}  // namespace shardrun::data
