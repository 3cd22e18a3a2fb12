#pragma once

#include <sys/mman.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace shardrun::text {

/// An allocator for large tables that are read at random. It asks the system for pages of 2 MiB, which need fewer
/// entries in the processor's TLB. The system can ignore this.
template <class T>
struct HugePages {
  using value_type = T;

  HugePages() = default;
  template <class U>
  explicit HugePages(const HugePages<U>& /*other*/) noexcept {}

  [[nodiscard]] T* allocate(std::size_t count) {
    constexpr std::size_t page = std::size_t{1} << 21U;
    const std::size_t bytes = count * sizeof(T);
    if (bytes < page) {
      return static_cast<T*>(::operator new(bytes, std::align_val_t(alignof(T))));
    }
    const std::size_t whole = (bytes + page - 1) / page * page;
    void* const memory = ::operator new(whole, std::align_val_t(page));
    static_cast<void>(::madvise(memory, whole, MADV_HUGEPAGE));
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) noexcept {
    constexpr std::size_t page = std::size_t{1} << 21U;
    ::operator delete(memory, std::align_val_t(count * sizeof(T) < page ? alignof(T) : page));
  }

  template <class U>
  bool operator==(const HugePages<U>& /*other*/) const noexcept {
    return true;
  }
};

/// A hash of text with which a map finds std::string keys by std::string_view.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>()(text); }
};
using TokenIds = std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>>;

/// Converts text in the alphabet of byte-level tokenizers (GPT-2), which has a visible character for each byte, to the
/// bytes. Returns nothing if a character is not in the alphabet.
[[nodiscard]] std::optional<std::string> bytes_of_alphabet(std::string_view text);
/// Converts bytes to the same alphabet; the reverse of bytes_of_alphabet().
[[nodiscard]] std::string alphabet_of_bytes(std::string_view bytes);

/// The byte of a byte token such as "<0x0A>"; nothing for other tokens.
[[nodiscard]] std::optional<char> byte_of_token(std::string_view token) noexcept;

/// Byte pair encoding of one piece of text (Sennrich et al. 2016, arXiv:1508.07909). It always merges the pair of
/// neighbouring symbols with the lowest rank, which is the pair that training merged first. Of pairs of equal rank, it
/// merges the leftmost one.
class BytePairs {
 public:
  struct Merge {
    std::int32_t left = 0;
    std::int32_t right = 0;
    std::int32_t whole = 0;
    std::int32_t rank = 0;  ///< pairs with lower ranks are merged first
  };
  struct Settings {
    bool byte_level = false;     ///< symbols are bytes; otherwise characters
    bool byte_fallback = false;  ///< a character without a token becomes one token <0xNN> for each of its bytes
    bool ignore_merges = false;  ///< a piece that is a token as a whole is not merged from symbols
    bool fuse_unknown = false;   ///< consecutive unknown characters become one token
    std::optional<std::int32_t> unknown;
  };

  BytePairs() = default;
  /// `ids`: the ids of the model's tokens, by their text in the tokenizer's file. If a pair occurs twice in `merges`,
  /// the later entry counts.
  BytePairs(const TokenIds& ids, const std::vector<Merge>& merges, Settings settings);

  [[nodiscard]] const Settings& settings() const noexcept { return settings_; }

  /// Appends the piece's tokens. Returns nothing, or the offset of a symbol that has no token if there is none for the
  /// unknown; the appended tokens are then invalid. Takes O(n log n) time. REQUIRES: UTF-8 of fewer than 2^31 bytes.
  [[nodiscard]] std::optional<std::size_t> encode(std::string_view piece, std::vector<std::int32_t>& tokens) const;

  /// The end of the part that begins at `at` and can be encoded independently of the rest of the piece, because no
  /// merge joins the characters on both sides of its end.
  [[nodiscard]] std::size_t end_of_part(std::string_view piece, std::size_t at) const;

 private:
  struct Found {
    std::uint64_t pair = 0;
    std::int32_t rank = -1;
    std::int32_t whole = 0;
  };

  // The kind of an ASCII character is its code. The blank mark (U+2581) has its own, and all others share one.
  static constexpr std::size_t blank = 128;
  static constexpr std::size_t other = 129;
  static constexpr std::size_t kinds = 130;
  struct Seen {
    std::size_t kind = 0;
    std::size_t end = 0;  ///< the offset of the next character
  };
  [[nodiscard]] static Seen look(std::string_view piece, std::size_t at);

  [[nodiscard]] const Found* find(std::int32_t left, std::int32_t right) const noexcept;
  [[nodiscard]] std::optional<std::size_t> add_symbols(std::string_view piece, std::vector<std::int32_t>& tokens) const;
  void merge_few(std::vector<std::int32_t>& tokens, std::size_t first) const;
  void merge_many(std::vector<std::int32_t>& tokens, std::size_t first) const;
  void find_joints(const TokenIds& ids, const std::vector<Merge>& merges);

  Settings settings_;
  TokenIds pieces_;                              ///< token ids by the bytes that the tokens stand for
  std::array<std::int32_t, 256> bytes_{};        ///< the token of each byte (a symbol, or for byte fallback); -1: none
  std::array<std::int32_t, 128> ascii_{};        ///< the token of each ASCII character; -1: none
  std::vector<Found, HugePages<Found>> merges_;  ///< an open hash table; its size is a power of 2
  unsigned shift_ = 0;                           ///< 64 minus the base-2 logarithm of the table's size
  bool has_parts_ = false;
  std::array<std::array<bool, kinds>, kinds> joined_{};  ///< whether a merge can join two kinds of characters
  std::vector<char32_t> joints_;  ///< non-ASCII characters that a merge joins with a following blank mark; ascending
};

}  // namespace shardrun::text
