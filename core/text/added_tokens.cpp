#include "core/text/added_tokens.h"

#include <algorithm>

#include "core/text/unicode.h"

namespace shardrun::text {
namespace {

bool is_of(std::string_view text, std::size_t at, CharacterClass wanted) {
  return (character_classes()[character_at(text, at).code_point] & wanted) != 0;
}

/// Whether neither the character before text[begin, end) nor the one after it is a word character (\w).
bool is_single_word(std::string_view text, std::size_t begin, std::size_t end) {
  return (begin == 0 || !is_of(text, character_before(text, begin), word)) &&
         (end == text.size() || !is_of(text, end, word));
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token, std::string_view content) {
  if (content.empty()) {
    return;
  }
  std::uint32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<unsigned char>(c);
    const auto found = std::ranges::find(nodes_[node].next, byte, &std::pair<unsigned char, std::uint32_t>::first);
    if (found != nodes_[node].next.end()) {
      node = found->second;
      continue;
    }
    const auto made = static_cast<std::uint32_t>(nodes_.size());
    nodes_[node].next.emplace_back(byte, made);
    nodes_.emplace_back();
    node = made;
  }
  begins_[static_cast<unsigned char>(content.front())] = true;
  only_begin_ = tokens_.empty() || only_begin_ == content.front() ? std::optional(content.front()) : std::nullopt;
  if (nodes_[node].token < 0) {
    nodes_[node].token = static_cast<std::int32_t>(tokens_.size());
    tokens_.push_back(token);
  }
}

AddedTokenFinder::Match AddedTokenFinder::find(std::string_view text, std::size_t from) const noexcept {
  for (; from < text.size(); ++from) {
    if (only_begin_) {  // in most tokenizers, all added tokens begin with one byte
      from = std::min(text.find(*only_begin_, from), text.size());
      if (from == text.size()) {
        break;
      }
    } else if (!begins_[static_cast<unsigned char>(text[from])]) {
      continue;
    }
    Match match;
    std::uint32_t node = 0;
    for (std::size_t at = from; at < text.size(); ++at) {
      const auto& next = nodes_[node].next;
      const auto found = std::ranges::find(next, static_cast<unsigned char>(text[at]),
                                           &std::pair<unsigned char, std::uint32_t>::first);
      if (found == next.end()) {
        break;
      }
      node = found->second;
      if (nodes_[node].token >= 0) {
        match = {from, at + 1, nodes_[node].token};
      }
    }
    if (match.token >= 0) {
      return match;
    }
  }
  return {};
}

void AddedTokenFinder::split(std::string_view text, std::vector<Segment>& segments) const {
  if (tokens_.empty()) {
    segments.push_back({text});
    return;
  }
  std::size_t begin = 0;     // the end of the text that is already in a segment
  std::size_t stripped = 0;  // the end of the white space that the last token with right_strip took
  for (Match match = find(text, 0); match.token >= 0; match = find(text, match.end)) {
    const AddedToken& token = tokens_[static_cast<std::size_t>(match.token)];
    if (token.single_word && !is_single_word(text, match.begin, match.end)) {
      continue;
    }
    std::size_t first = match.begin;
    std::size_t end = match.end;
    if (token.left_strip) {
      while (first > begin && is_of(text, character_before(text, first), space)) {
        first = character_before(text, first);
      }
      first = std::max(first, begin);
    }
    if (token.right_strip) {
      end = std::max(end, stripped);
      while (end < text.size() && is_of(text, end, space)) {
        end += character_at(text, end).bytes;
      }
      stripped = end;
    }
    if (begin < first) {
      segments.push_back({text.substr(begin, first - begin)});
    }
    segments.push_back({text.substr(match.begin, match.end - match.begin), token.id});
    begin = end;
  }
  if (begin < text.size() || text.empty()) {
    segments.push_back({text.substr(begin)});
  }
}

}  // namespace shardrun::text
