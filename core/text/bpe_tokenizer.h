#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::text {

struct Parts;
class WordCache;

/// A tokenizer in a tokenizer.json, as Python's `tokenizers` makes and reads it: byte pair encoding, with what stands
/// before and behind it. Copies share their parts, which never change; any thread.
class BpeTokenizer {
 public:
  /// `path`: a tokenizer.json, the folder of one, or a GGUF file. Throws Error{data} for anything that would not be
  /// done as Python's tokenizers does it: where it is in the file, what was expected and what was found.
  [[nodiscard]] static BpeTokenizer from_file(const std::filesystem::path& path);
  /// `source` names the JSON in messages.
  [[nodiscard]] static BpeTokenizer from_json(std::string_view json, std::string_view source);

  /// The tokenizer.json, in one line.
  [[nodiscard]] const std::string& json() const noexcept;
  /// Tokens are 0 to vocabulary() - 1.
  [[nodiscard]] std::int64_t vocabulary() const noexcept;
  /// The token with this content, such as "<|endoftext|>".
  [[nodiscard]] std::optional<std::int32_t> find(std::string_view content) const;
  /// Whether the token is left out of what is decoded.
  [[nodiscard]] bool is_special(std::int32_t token) const;
  // What the tokenizer puts before and behind a text, such as <s>.
  [[nodiscard]] const std::vector<std::int32_t>& before() const noexcept;
  [[nodiscard]] const std::vector<std::int32_t>& behind() const noexcept;

  /// The bytes of a text, without special tokens. They may not be UTF-8, where tokens are bytes. Throws Error{data} for
  /// a token past the vocabulary.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens) const;

 private:
  friend class BpeEncoder;
  friend class BpeDecoder;

  explicit BpeTokenizer(std::shared_ptr<const Parts> parts);

  std::shared_ptr<const Parts> parts_;
};

/// Encodes texts. One thread at a time: it keeps tokens of words that it has seen, in up to 16 MiB.
class BpeEncoder {
 public:
  explicit BpeEncoder(const BpeTokenizer& tokenizer);
  BpeEncoder(BpeEncoder&& other) noexcept;
  BpeEncoder& operator=(BpeEncoder&& other) noexcept;
  ~BpeEncoder();

  /// Appends the tokens of a whole text, without before() and behind(). Takes at most n log n time. Throws Error{data}
  /// with the place of the first byte that is not UTF-8, or of a character that has no token.
  void encode(std::string_view text, std::vector<std::int32_t>& tokens);

 private:
  void encode_segment(std::string_view text, bool is_first);
  void split(std::string_view piece, std::size_t step, bool is_first);
  void encode_piece(std::string_view piece);
  void queue_word(std::string_view word);
  void encode_queue();
  void encode_new(std::string_view part);

  std::shared_ptr<const Parts> parts_;
  std::unique_ptr<WordCache> cache_;
  std::vector<std::string> scratch_;             ///< a piece that a pre-tokenizer has changed, one for each
  std::string_view text_;                        ///< of the call to encode()
  std::vector<std::int32_t>* tokens_ = nullptr;  ///< likewise
  const char* limit_ = nullptr;                  ///< the end of the text that a piece is cut from
};

/// Decodes tokens as they come, in whole characters.
class BpeDecoder {
 public:
  explicit BpeDecoder(const BpeTokenizer& tokenizer);

  /// Appends the bytes that are complete with this token: a UTF-8 character that more tokens may complete waits. Throws
  /// as BpeTokenizer::decode.
  void decode(std::int32_t token, std::string& text);
  /// Appends what still waits.
  void finish(std::string& text);

 private:
  friend class BpeTokenizer;

  /// Also bytes that may not be complete.
  void add(std::int32_t token);

  std::shared_ptr<const Parts> parts_;
  std::string waiting_;
  bool is_first_ = true;
  std::int64_t to_strip_;
};

}  // namespace shardrun::text
