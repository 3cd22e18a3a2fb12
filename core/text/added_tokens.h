#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardrun::text {

/// A token that is found in a text before anything is merged.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< not beside a character of \w
  bool left_strip = false;   ///< takes the white space before it
  bool right_strip = false;  ///< and behind it
  bool normalized = false;   ///< is found in the normalized text
  bool special = false;      ///< is left out of what is decoded
};

/// A part of a text: an added token, or what stands between them.
struct Segment {
  std::string_view text;
  std::int32_t token = -1;  ///< -1: none
};

/// Finds added tokens: of those that begin first the longest.
class AddedTokenFinder {
 public:
  /// `content`: as it is found in a text, which normalization may have changed.
  void add(const AddedToken& token, std::string_view content);

  /// Appends the parts of a text, in order. An empty text has one empty part.
  void split(std::string_view text, std::vector<Segment>& segments) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, std::uint32_t>> next;
    std::int32_t token = -1;  ///< an index of tokens_
  };
  struct Match {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::int32_t token = -1;
  };

  [[nodiscard]] Match find(std::string_view text, std::size_t from) const noexcept;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> begins_{};  ///< bytes that a token begins with
  std::optional<char> only_begin_;  ///< if there is one
};

}  // namespace shardrun::text
