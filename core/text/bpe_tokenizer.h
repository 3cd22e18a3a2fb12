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

/// A byte pair encoding tokenizer, read from a tokenizer.json of Python's `tokenizers`, with all steps before and after
/// the merges. Copies share immutable data; any thread may use them.
class BpeTokenizer {
 public:
  /// Reads a tokenizer.json, the folder that contains one, or a GGUF file. Throws Error{data}, with the place in the
  /// file, for settings with which tokens would differ from those of Python's tokenizers. Throws as read_text_file().
  [[nodiscard]] static BpeTokenizer from_file(const std::filesystem::path& path);
  /// Parses the text of a tokenizer.json. `source` names it in messages. Throws as from_file() does.
  [[nodiscard]] static BpeTokenizer from_json(std::string_view json, std::string_view source);

  /// The text of the tokenizer.json, in one line.
  [[nodiscard]] const std::string& json() const noexcept;
  /// The number of tokens: ids are 0 to vocabulary() - 1.
  [[nodiscard]] std::int64_t vocabulary() const noexcept;
  /// The id of the token with this content, such as "<|endoftext|>"; nothing if there is none.
  [[nodiscard]] std::optional<std::int32_t> find(std::string_view content) const;
  /// Whether decoding leaves the token out.
  [[nodiscard]] bool is_special(std::int32_t token) const;
  // The tokens that the tokenizer puts before and after a text, such as <s>.
  [[nodiscard]] const std::vector<std::int32_t>& before() const noexcept;
  [[nodiscard]] const std::vector<std::int32_t>& behind() const noexcept;

  /// The text of these tokens, without special tokens. If tokens are bytes, the result may be invalid UTF-8. Throws
  /// Error{data} for an id outside of the vocabulary.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens) const;

 private:
  friend class BpeEncoder;
  friend class BpeDecoder;

  explicit BpeTokenizer(std::shared_ptr<const Parts> parts);

  std::shared_ptr<const Parts> parts_;
};

/// Encodes texts. Only one thread at a time can use it, because it caches the tokens of words, in up to 16 MiB.
class BpeEncoder {
 public:
  explicit BpeEncoder(const BpeTokenizer& tokenizer);
  BpeEncoder(BpeEncoder&& other) noexcept;
  BpeEncoder& operator=(BpeEncoder&& other) noexcept;
  ~BpeEncoder();

  /// Appends the tokens of a whole text, without before() and behind(). Takes O(n log n) time. Throws Error{data} with
  /// the offset of the first byte that is not UTF-8, for a character without a token, or for a piece of 2 GiB or more.
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
  std::vector<std::string> scratch_;             ///< per split step, the piece that the step has changed
  std::string_view text_;                        ///< the text given to encode()
  std::vector<std::int32_t>* tokens_ = nullptr;  ///< the result of encode()
  const char* limit_ = nullptr;                  ///< the end of the text from which pieces are being cut
};

/// Decodes tokens one after the other and returns whole UTF-8 characters.
class BpeDecoder {
 public:
  explicit BpeDecoder(const BpeTokenizer& tokenizer);

  /// Appends the characters that this token completes to `text`. Bytes of an incomplete UTF-8 character wait for the
  /// next tokens. Throws as BpeTokenizer::decode() does.
  void decode(std::int32_t token, std::string& text);
  /// Appends the bytes that still wait for the rest of their character.
  void finish(std::string& text);

 private:
  friend class BpeTokenizer;

  /// Adds a token's bytes to waiting_, also those of incomplete characters.
  void add(std::int32_t token);

  std::shared_ptr<const Parts> parts_;
  std::string waiting_;
  bool is_first_ = true;
  std::int64_t to_strip_;
};

}  // namespace shardrun::text
