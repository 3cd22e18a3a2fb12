#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/text/huge_pages.h"

namespace shardrun::text {

/// Finds a map's keys without making a std::string.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>()(text); }
};
using TokenIds = std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>>;

/// The alphabet of byte-level tokenizers (GPT-2): a visible character for each byte. The text of the bytes, or nothing
/// if a character is not of the alphabet.
[[nodiscard]] std::optional<std::string> bytes_of_alphabet(std::string_view text);
/// The other way round.
[[nodiscard]] std::string alphabet_of_bytes(std::string_view bytes);

/// The byte of a token such as "<0x0A>"; nothing for others.
[[nodiscard]] std::optional<char> byte_of_token(std::string_view token) noexcept;

/// Byte pair encoding of one piece of text (Sennrich et al. 2016, arXiv:1508.07909): the pair of neighbours that was
/// merged first in training is merged first, the leftmost of equals.
class BytePairs {
 public:
  struct Merge {
    std::int32_t left = 0;
    std::int32_t right = 0;
    std::int32_t whole = 0;
    std::int32_t rank = 0;  ///< lower ones are merged first; of equals the leftmost pair
  };
  struct Settings {
    bool byte_level = false;     ///< symbols are bytes, else characters
    bool byte_fallback = false;  ///< a character without a token becomes those of its bytes, <0xNN>
    bool ignore_merges = false;  ///< a piece that is a token is that
    bool fuse_unknown = false;   ///< neighbouring unknown characters are one token
    std::optional<std::int32_t> unknown;
  };

  BytePairs() = default;
  /// `ids`: of the model's tokens, in the form of its file. `merges`: a later one of the same pair replaces an earlier
  /// one.
  BytePairs(const TokenIds& ids, const std::vector<Merge>& merges, Settings settings);

  [[nodiscard]] const Settings& settings() const noexcept { return settings_; }

  /// Appends the piece's tokens. Returns the offset of the first symbol that has none, if there is one: then what was
  /// appended is of no use. Takes at most n log n time. REQUIRES: valid UTF-8 of fewer than 2^31 bytes.
  [[nodiscard]] std::optional<std::size_t> encode(std::string_view piece, std::vector<std::int32_t>& tokens) const;

  /// The end of the part of a piece, from `at` on, that can be encoded by itself, because no merge joins the characters
  /// before and behind it.
  [[nodiscard]] std::size_t end_of_part(std::string_view piece, std::size_t at) const;

 private:
  struct Found {
    std::uint64_t pair = 0;
    std::int32_t rank = -1;
    std::int32_t whole = 0;
  };

  // Kinds of characters: those of ASCII by their numbers, the blank mark (U+2581), and all others.
  static constexpr std::size_t blank = 128;
  static constexpr std::size_t other = 129;
  static constexpr std::size_t kinds = 130;
  struct Seen {
    std::size_t kind = 0;
    std::size_t end = 0;  ///< the offset behind the character
  };
  [[nodiscard]] static Seen look(std::string_view piece, std::size_t at);

  [[nodiscard]] const Found* find(std::int32_t left, std::int32_t right) const noexcept;
  [[nodiscard]] std::optional<std::size_t> add_symbols(std::string_view piece, std::vector<std::int32_t>& tokens) const;
  void merge_few(std::vector<std::int32_t>& tokens, std::size_t first) const;
  void merge_many(std::vector<std::int32_t>& tokens, std::size_t first) const;
  void find_joints(const TokenIds& ids, const std::vector<Merge>& merges);

  Settings settings_;
  TokenIds pieces_;                              ///< by the bytes that they stand for
  std::array<std::int32_t, 256> bytes_{};        ///< token of a byte, or -1: a symbol, or by byte fallback
  std::array<std::int32_t, 128> ascii_{};        ///< token of a character, or -1
  std::vector<Found, HugePages<Found>> merges_;  ///< an open hash table; its size is a power of 2
  unsigned shift_ = 0;                           ///< 64 less the logarithm of that
  bool has_parts_ = false;
  std::array<std::array<bool, kinds>, kinds> joined_{};  ///< whether a merge may join two kinds of characters
  std::vector<char32_t> joints_;  ///< other characters that a merge joins with a blank mark behind them, ascending
};

}  // namespace shardrun::text
