#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardrun::text {

/// A token of `added_tokens` in a tokenizer.json. It is cut out of a text before the text is merged into other tokens.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< found only where no character of \w is beside it
  bool left_strip = false;   ///< also takes the white space before the token
  bool right_strip = false;  ///< also takes the white space after the token
  bool normalized = false;   ///< searched for in the normalized text, not in the original one
  bool special = false;      ///< left out of decoded text
};

/// A part of a text: an added token, or the text between two added tokens.
struct Segment {
  std::string_view text;
  std::int32_t token = -1;  ///< the added token's id; -1: text between added tokens
};

/// Finds added tokens in a text. It finds the one that begins first and, of several that begin there, the longest.
class AddedTokenFinder {
 public:
  /// Adds a token. `content`: the text to search for, normalized if token.normalized is set. Ignores an empty text.
  void add(const AddedToken& token, std::string_view content);

  /// Appends the segments of a text, in order. An empty text gives one empty segment.
  void split(std::string_view text, std::vector<Segment>& segments) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, std::uint32_t>> next;
    std::int32_t token = -1;  ///< an index of tokens_; -1: no token ends here
  };
  struct Match {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::int32_t token = -1;
  };

  [[nodiscard]] Match find(std::string_view text, std::size_t from) const noexcept;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> begins_{};  ///< whether a token begins with this byte
  std::optional<char> only_begin_;  ///< the byte with which all tokens begin, if there is only one
};

}  // namespace shardrun::text
