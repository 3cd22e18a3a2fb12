#pragma once

#include <cstddef>
#include <string_view>

namespace shardrun::sdk {

/// Whether a pattern matches a whole name: `*` matches any run of characters, `?` matches one.
[[nodiscard]] inline bool glob_matches(std::string_view pattern, std::string_view text) noexcept {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;  // the last star seen; no earlier one needs to match more
  std::size_t taken = 0;                      // the end of what that star matches
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace shardrun::sdk
