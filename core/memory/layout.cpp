#include "core/memory/layout.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/memory/occupancy.h"

namespace shardrun::memory {
namespace {

/// Places intervals in the given order; returns nothing if that needs `limit` bytes or more.
std::optional<Layout> place_in_order(std::span<const Interval> intervals, const std::vector<std::size_t>& order,
                                     std::int32_t instructions, std::uint64_t limit) {
  Layout layout{.offsets = std::vector<std::uint64_t>(intervals.size(), 0), .bytes = 0};
  Occupancy taken(instructions);
  for (const std::size_t i : order) {
    const Interval& interval = intervals[i];
    const std::uint64_t size = align_up(interval.bytes);
    const std::uint64_t offset = taken.tightest(interval.first, interval.last, size);
    layout.offsets[i] = offset;
    layout.bytes = std::max(layout.bytes, offset + size);
    if (layout.bytes >= limit) {
      return std::nullopt;
    }
    taken.add(interval.first, interval.last, {offset, offset + size});
  }
  return layout;
}

/// Indices of the intervals that are not empty.
std::vector<std::size_t> not_empty(std::span<const Interval> intervals) {
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < intervals.size(); ++i) {
    if (intervals[i].bytes > 0) {
      numbers.push_back(i);
    }
  }
  return numbers;
}

/// Indices of intervals, sorted by key. Equal keys keep their order.
template <typename Key>
std::vector<std::size_t> sorted_by(Key key, std::span<const Interval> intervals, std::vector<std::size_t> numbers) {
  std::vector<std::pair<std::int64_t, std::size_t>> keyed;
  keyed.reserve(numbers.size());
  for (const std::size_t i : numbers) {
    keyed.emplace_back(key(intervals[i]), i);
  }
  std::sort(keyed.begin(), keyed.end());
  std::transform(keyed.begin(), keyed.end(), numbers.begin(), [](const auto& each) { return each.second; });
  return numbers;
}

/// The number of instructions until the last interval ends.
std::int32_t instructions_of(std::span<const Interval> intervals) {
  std::int32_t last = -1;
  for (const Interval& interval : intervals) {
    last = std::max(last, interval.last);
  }
  return last + 1;
}

}  // namespace

Layout place(std::span<const Interval> intervals) {
  const std::vector<std::size_t> numbers = not_empty(intervals);
  const std::uint64_t least = most_live(intervals).first;
  using Key = std::int64_t (*)(const Interval& interval);  // intervals with the least key are placed first
  const std::array<Key, 3> keys = {
      [](const Interval& each) { return -static_cast<std::int64_t>(each.bytes); },
      [](const Interval& each) { return std::int64_t{each.first} - each.last; },
      [](const Interval& each) { return std::int64_t{each.first}; },
  };
  Layout best{.offsets = std::vector<std::uint64_t>(intervals.size(), 0), .bytes = 0};
  std::uint64_t limit = std::numeric_limits<std::uint64_t>::max();
  for (const Key key : keys) {
    if (std::optional<Layout> layout =
            place_in_order(intervals, sorted_by(key, intervals, numbers), instructions_of(intervals), limit)) {
      best = std::move(*layout);
      limit = best.bytes;
    }
    if (best.bytes == least) {
      break;
    }
  }
  return best;
}

std::pair<std::uint64_t, std::int32_t> most_live(std::span<const Interval> intervals) {
  std::vector<std::int64_t> change(static_cast<std::size_t>(instructions_of(intervals)) + 1, 0);
  for (const Interval& interval : intervals) {
    const auto bytes = static_cast<std::int64_t>(align_up(interval.bytes));
    change[static_cast<std::size_t>(interval.first)] += bytes;
    change[static_cast<std::size_t>(interval.last) + 1] -= bytes;
  }
  std::int64_t live = 0;
  std::pair<std::uint64_t, std::int32_t> most = {0, 0};
  for (std::size_t at = 0; at < change.size(); ++at) {
    live += change[at];
    if (static_cast<std::uint64_t>(live) > most.first) {
      most = {static_cast<std::uint64_t>(live), static_cast<std::int32_t>(at)};
    }
  }
  return most;
}

std::uint64_t touched_bytes(std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::uint64_t pages = 0;
  std::uint64_t next_page = 0;
  for (const auto& [offset, bytes] : ranges) {
    if (bytes == 0) {
      continue;
    }
    const std::uint64_t first = std::max(offset / page_bytes, next_page);
    const std::uint64_t end = (offset + bytes + page_bytes - 1) / page_bytes;
    if (end > first) {
      pages += end - first;
      next_page = end;
    }
  }
  return pages * page_bytes;
}

}  // namespace shardrun::memory
