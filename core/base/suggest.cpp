#include "core/base/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace shardrun {
namespace {

/// Optimal string alignment distance (Damerau 1964, restricted to one edit of each substring).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> above(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    above[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replace, above[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

/// The longest name that is compared, because the distance takes quadratic time. A longer name is never
/// near a candidate.
constexpr std::size_t longest_compared = 128;

}  // namespace

std::string folded(std::string_view name) {
  std::string result;
  for (const char c : name) {
    if (std::string_view(" \t-_.").find(c) == std::string_view::npos) {
      result += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  return result;
}

std::string_view nearest_name(std::string_view name, std::span<const std::string> candidates) {
  if (name.size() > longest_compared) {
    return {};
  }
  const std::string alike = folded(name);
  for (const std::string& candidate : candidates) {
    if (!alike.empty() && folded(candidate) == alike) {
      return candidate;
    }
  }
  std::string_view best;
  std::size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > longest_compared) {
      continue;
    }
    const std::size_t distance = edit_distance(name, candidate);
    const std::size_t allowed = std::max<std::size_t>(1, std::max(name.size(), candidate.size()) / 3);
    if (distance <= allowed && (best.empty() || distance < best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> candidates) {
  const std::string_view near = nearest_name(name, candidates);
  return near.empty() ? std::string() : fmt::format(" (did you mean '{}'?)", near);
}

}  // namespace shardrun
