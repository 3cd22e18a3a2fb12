#include "core/text/byte_pairs.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <utility>

#include "core/base/utf8.h"
#include "core/text/unicode.h"

namespace shardrun::text {
namespace {

constexpr std::string_view blank_mark = "\xE2\x96\x81";

/// Up to this number of symbols, looking through all pairs for each merge is faster than a heap.
constexpr std::size_t few_symbols = 64;

constexpr std::int32_t no_rank = INT32_MAX;

/// The character for each byte in GPT-2's alphabet: bytes that are visible in Latin-1 stand for themselves, the others
/// get U+0100, U+0101 and so on.
std::array<char32_t, 256> make_alphabet() {
  std::array<char32_t, 256> alphabet{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < alphabet.size(); ++byte) {
    const bool is_visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    alphabet[byte] = is_visible ? byte : next++;
  }
  return alphabet;
}

const std::array<char32_t, 256>& alphabet() {
  static const std::array<char32_t, 256> made = make_alphabet();
  return made;
}

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32U | static_cast<std::uint32_t>(right);
}

/// A pair's index in a hash table of 2^(64 - shift) entries. The product's highest bits depend on all bits
/// of both tokens.
std::size_t place_of(std::uint64_t pair, unsigned shift) {
  return static_cast<std::size_t>((pair ^ pair >> 29U) * 0x9E3779B97F4A7C15ULL >> shift);
}

}  // namespace

std::optional<std::string> bytes_of_alphabet(std::string_view text) {
  // The alphabet's characters are below U+0200.
  static const std::array<std::int16_t, 0x200> bytes = [] {
    std::array<std::int16_t, 0x200> made{};
    made.fill(-1);
    for (std::size_t byte = 0; byte < alphabet().size(); ++byte) {
      made[alphabet()[byte]] = static_cast<std::int16_t>(byte);
    }
    return made;
  }();
  std::string found;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if (character.code_point >= bytes.size() || bytes[character.code_point] < 0) {
      return std::nullopt;
    }
    found += static_cast<char>(bytes[character.code_point]);
    at += character.bytes;
  }
  return found;
}

std::string alphabet_of_bytes(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    append_utf8(text, alphabet()[static_cast<unsigned char>(byte)]);
  }
  return text;
}

std::optional<char> byte_of_token(std::string_view token) noexcept {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
  };
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>' || digit(token[3]) < 0 || digit(token[4]) < 0) {
    return std::nullopt;
  }
  return static_cast<char>(16 * digit(token[3]) + digit(token[4]));
}

BytePairs::BytePairs(const TokenIds& ids, const std::vector<Merge>& merges, Settings settings) : settings_(settings) {
  bytes_.fill(-1);
  ascii_.fill(-1);
  pieces_.reserve(ids.size());
  for (const auto& [token, id] : ids) {
    if (settings_.byte_level) {
      if (std::optional<std::string> bytes = bytes_of_alphabet(token)) {
        if (bytes->size() == 1) {
          bytes_[static_cast<unsigned char>(bytes->front())] = id;
        }
        pieces_.emplace(std::move(*bytes), id);
      }
      continue;
    }
    pieces_.emplace(token, id);
    if (token.size() == 1) {
      ascii_[static_cast<unsigned char>(token.front())] = id;
    }
    // Token names are written with capital hexadecimal digits: <0x0A>, not <0x0a>.
    if (const std::optional<char> byte = byte_of_token(token);
        settings_.byte_fallback && byte && std::ranges::none_of(token.substr(3), [](char c) { return c >= 'a'; })) {
      bytes_[static_cast<unsigned char>(*byte)] = id;
    }
  }
  merges_.resize(std::bit_ceil(2 * merges.size() + 2));
  shift_ = 64U - static_cast<unsigned>(std::countr_zero(merges_.size()));
  for (const Merge& merge : merges) {
    const std::uint64_t pair = pair_of(merge.left, merge.right);
    std::size_t at = place_of(pair, shift_);
    while (merges_[at].rank >= 0 && merges_[at].pair != pair) {
      at = (at + 1) & (merges_.size() - 1);
    }
    merges_[at] = {pair, merge.rank, merge.whole};
  }
  find_joints(ids, merges);
}

BytePairs::Seen BytePairs::look(std::string_view piece, std::size_t at) {
  if (const auto byte = static_cast<unsigned char>(piece[at]); byte < 0x80) {
    return {byte, at + 1};
  }
  const std::size_t end = at + character_at(piece, at).bytes;
  return {piece.substr(at, end - at) == blank_mark ? blank : other, end};
}

void BytePairs::find_joints(const TokenIds& ids, const std::vector<Merge>& merges) {
  if (settings_.byte_level) {
    return;
  }
  std::vector<std::string_view> texts;
  for (const auto& [token, id] : ids) {
    texts.resize(std::max(texts.size(), static_cast<std::size_t>(id) + 1));
    texts[static_cast<std::size_t>(id)] = token;
  }
  // Two characters stay together if the second can be unknown, because it can be fused with an unknown one before it.
  for (std::size_t second = 0; second < kinds; ++second) {
    const bool is_known = second == blank ? pieces_.contains(blank_mark) : second < blank && ascii_[second] >= 0;
    for (std::size_t first = 0; first < kinds; ++first) {
      joined_[first][second] = !is_known || (first == other && second != blank);
    }
  }
  for (const Merge& merge : merges) {
    for (const std::int32_t part : {merge.left, merge.right}) {
      // The text of a byte token or the unknown token is not the text that it encodes,
      // so parts cannot be found by text.
      if ((settings_.byte_fallback && byte_of_token(texts[static_cast<std::size_t>(part)])) ||
          part == settings_.unknown) {
        return;
      }
    }
    const std::string_view whole = texts[static_cast<std::size_t>(merge.whole)];
    std::size_t at = 0;
    for (Seen first = look(whole, 0); first.end < whole.size();) {
      const Seen second = look(whole, first.end);
      if (first.kind == other && second.kind == blank) {
        joints_.push_back(character_at(whole, at).code_point);
      } else {
        joined_[first.kind][second.kind] = true;
      }
      at = first.end;
      first = second;
    }
  }
  std::ranges::sort(joints_);
  joints_.erase(std::unique(joints_.begin(), joints_.end()), joints_.end());
  // With ignore_merges, a part would be looked up as if it were a whole piece.
  has_parts_ = !settings_.ignore_merges;
}

std::size_t BytePairs::end_of_part(std::string_view piece, std::size_t at) const {
  if (!has_parts_) {
    return piece.size();
  }
  for (Seen first = look(piece, at); first.end < piece.size();) {
    const Seen second = look(piece, first.end);
    if (!joined_[first.kind][second.kind] &&
        (first.kind != other || !std::ranges::binary_search(joints_, character_at(piece, at).code_point))) {
      return first.end;
    }
    at = first.end;
    first = second;
  }
  return piece.size();
}

const BytePairs::Found* BytePairs::find(std::int32_t left, std::int32_t right) const noexcept {
  const std::uint64_t pair = pair_of(left, right);
  std::size_t at = place_of(pair, shift_);
  while (merges_[at].rank >= 0) {
    if (merges_[at].pair == pair) {
      return &merges_[at];
    }
    at = (at + 1) & (merges_.size() - 1);
  }
  return nullptr;
}

std::optional<std::size_t> BytePairs::encode(std::string_view piece, std::vector<std::int32_t>& tokens) const {
  if (settings_.ignore_merges) {
    if (const auto found = pieces_.find(piece); found != pieces_.end()) {
      tokens.push_back(found->second);
      return std::nullopt;
    }
  }
  const std::size_t first = tokens.size();
  if (const std::optional<std::size_t> missing = add_symbols(piece, tokens)) {
    return missing;
  }
  if (tokens.size() - first <= few_symbols) {
    merge_few(tokens, first);
  } else {
    merge_many(tokens, first);
  }
  return std::nullopt;
}

std::optional<std::size_t> BytePairs::add_symbols(std::string_view piece, std::vector<std::int32_t>& tokens) const {
  if (settings_.byte_level) {
    // Each byte is one character of the alphabet, so each unknown byte is one unknown token.
    bool is_fused = false;
    for (std::size_t at = 0; at < piece.size(); ++at) {
      const std::int32_t token = bytes_[static_cast<unsigned char>(piece[at])];
      if (token < 0 && !settings_.unknown) {
        return at;
      }
      if (token >= 0 || !is_fused) {
        tokens.push_back(token >= 0 ? token : *settings_.unknown);
      }
      is_fused = token < 0 && settings_.fuse_unknown;
    }
    return std::nullopt;
  }
  // As in Python's tokenizers, an unknown token is appended only before the next known character or at the end. Byte
  // tokens of later characters therefore come before it.
  bool waits = false;
  for (std::size_t at = 0; at < piece.size();) {
    const Character character = character_at(piece, at);
    const std::string_view text = piece.substr(at, character.bytes);
    std::int32_t token = -1;
    if (character.bytes == 1) {
      token = ascii_[character.code_point];
    } else if (const auto found = pieces_.find(text); found != pieces_.end()) {
      token = found->second;
    }
    const auto has_token = [&](char byte) { return bytes_[static_cast<unsigned char>(byte)] >= 0; };
    if (token >= 0) {
      if (waits) {
        tokens.push_back(*settings_.unknown);
        waits = false;
      }
      tokens.push_back(token);
    } else if (settings_.byte_fallback && std::ranges::all_of(text, has_token)) {
      for (const char byte : text) {
        tokens.push_back(bytes_[static_cast<unsigned char>(byte)]);
      }
    } else if (!settings_.unknown) {
      return at;
    } else {
      if (waits && !settings_.fuse_unknown) {
        tokens.push_back(*settings_.unknown);
      }
      waits = true;
    }
    at += character.bytes;
  }
  if (waits) {
    tokens.push_back(*settings_.unknown);
  }
  return std::nullopt;
}

void BytePairs::merge_few(std::vector<std::int32_t>& tokens, std::size_t first) const {
  std::array<std::int32_t, few_symbols> ranks;
  std::array<std::int32_t, few_symbols> wholes;
  std::int32_t* const symbols = tokens.data() + first;
  std::size_t count = tokens.size() - first;
  // ranks[i] is the rank of the pair of symbols i and i + 1.
  const auto look = [&](std::size_t i) {
    const Found* const found = find(symbols[i], symbols[i + 1]);
    ranks[i] = found == nullptr ? no_rank : found->rank;
    wholes[i] = found == nullptr ? 0 : found->whole;
  };
  for (std::size_t i = 0; i + 1 < count; ++i) {
    look(i);
  }
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      best = ranks[i] < ranks[best] ? i : best;
    }
    if (ranks[best] == no_rank) {
      break;
    }
    symbols[best] = wholes[best];
    --count;
    for (std::size_t i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      ranks[i] = ranks[i + 1];
      wholes[i] = wholes[i + 1];
    }
    if (best > 0) {
      look(best - 1);
    }
    if (best + 1 < count) {
      look(best);
    }
  }
  tokens.resize(first + count);
}

void BytePairs::merge_many(std::vector<std::int32_t>& tokens, std::size_t first) const {
  // The symbols form a linked list in place. -1 marks a symbol that was merged into the one before it.
  const std::size_t count = tokens.size() - first;
  std::int32_t* const symbols = tokens.data() + first;
  std::vector<std::uint32_t> before(count);
  std::vector<std::uint32_t> behind(count);
  using Candidate = std::pair<std::int32_t, std::uint32_t>;  // rank, left symbol
  std::vector<Candidate> made;
  made.reserve(count);
  const auto rank_at = [&](std::uint32_t i) {
    const Found* const found = behind[i] < count ? find(symbols[i], symbols[behind[i]]) : nullptr;
    return found;
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    before[i] = i - 1;
    behind[i] = i + 1;
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    if (const Found* const found = rank_at(i)) {
      made.emplace_back(found->rank, i);
    }
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates(std::greater<>(), std::move(made));
  while (!candidates.empty()) {
    const auto [rank, at] = candidates.top();
    candidates.pop();
    const Found* const found = symbols[at] < 0 ? nullptr : rank_at(at);
    if (found == nullptr || found->rank != rank) {
      continue;  // one of the pair's symbols has been merged with another since
    }
    const std::uint32_t gone = behind[at];
    symbols[at] = found->whole;
    symbols[gone] = -1;
    behind[at] = behind[gone];
    if (behind[at] < count) {
      before[behind[at]] = at;
    }
    for (const std::uint32_t left : {at, at > 0 ? before[at] : at}) {
      if (const Found* const next = rank_at(left)) {
        candidates.emplace(next->rank, left);
      }
    }
  }
  tokens.erase(std::remove(tokens.begin() + static_cast<std::ptrdiff_t>(first), tokens.end(), -1), tokens.end());
}

}  // namespace shardrun::text
