#include "core/memory/layout.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>

namespace shardrun::memory {
namespace {

/// An interval in its place.
struct Placed {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::int32_t first = 0;
  std::int32_t last = 0;
};

/// Where `size` bytes fit in the tightest gap between those of `by_offset` (ascending) that live at the same time, or
/// behind them.
std::uint64_t tightest(const std::vector<Placed>& by_offset, const Interval& interval, std::uint64_t size) {
  std::uint64_t end_of_gap_before = 0;
  std::uint64_t best_offset = 0;
  std::uint64_t best_gap = std::numeric_limits<std::uint64_t>::max();
  for (const Placed& other : by_offset) {
    if (other.first > interval.last || interval.first > other.last) {
      continue;
    }
    if (other.begin >= end_of_gap_before + size && other.begin - end_of_gap_before < best_gap) {
      best_gap = other.begin - end_of_gap_before;
      best_offset = end_of_gap_before;
      if (best_gap == size) {
        return best_offset;
      }
    }
    end_of_gap_before = std::max(end_of_gap_before, other.end);
  }
  return best_gap == std::numeric_limits<std::uint64_t>::max() ? end_of_gap_before : best_offset;
}

/// Places intervals in the given order.
Layout place_in_order(std::span<const Interval> intervals, const std::vector<std::size_t>& order) {
  Layout layout{.offsets = std::vector<std::uint64_t>(intervals.size(), 0), .bytes = 0};
  std::vector<Placed> by_offset;
  by_offset.reserve(order.size());
  for (const std::size_t i : order) {
    const Interval& interval = intervals[i];
    const std::uint64_t size = align_up(interval.bytes);
    const std::uint64_t offset = tightest(by_offset, interval, size);
    layout.offsets[i] = offset;
    layout.bytes = std::max(layout.bytes, offset + size);
    const auto behind = [](std::uint64_t begin, const Placed& other) { return begin < other.begin; };
    by_offset.insert(std::upper_bound(by_offset.begin(), by_offset.end(), offset, behind),
                     {offset, offset + size, interval.first, interval.last});
  }
  return layout;
}

/// Those that need room at all, in no order yet.
std::vector<std::size_t> not_empty(std::span<const Interval> intervals) {
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < intervals.size(); ++i) {
    if (intervals[i].bytes > 0) {
      numbers.push_back(i);
    }
  }
  return numbers;
}

}  // namespace

Layout place(std::span<const Interval> intervals) {
  const std::vector<std::size_t> order = not_empty(intervals);
  const std::uint64_t least = most_live(intervals).first;
  const auto length = [&](std::size_t i) { return intervals[i].last - intervals[i].first; };
  const std::vector<std::function<bool(std::size_t, std::size_t)>> orders = {
      [&](std::size_t a, std::size_t b) { return intervals[a].bytes > intervals[b].bytes; },
      [&](std::size_t a, std::size_t b) { return length(a) > length(b); },
      [&](std::size_t a, std::size_t b) { return intervals[a].first < intervals[b].first; },
  };
  Layout best;
  for (const auto& before : orders) {
    std::vector<std::size_t> sorted = order;
    std::stable_sort(sorted.begin(), sorted.end(), before);
    Layout layout = place_in_order(intervals, sorted);
    if (best.offsets.empty() || layout.bytes < best.bytes) {
      best = std::move(layout);
    }
    if (best.bytes == least) {
      break;
    }
  }
  return best;
}

std::pair<std::uint64_t, std::int32_t> most_live(std::span<const Interval> intervals) {
  std::map<std::int32_t, std::int64_t> change;
  for (const Interval& interval : intervals) {
    change[interval.first] += static_cast<std::int64_t>(align_up(interval.bytes));
    change[interval.last + 1] -= static_cast<std::int64_t>(align_up(interval.bytes));
  }
  std::int64_t live = 0;
  std::pair<std::uint64_t, std::int32_t> most = {0, 0};
  for (const auto& [at, delta] : change) {
    live += delta;
    if (static_cast<std::uint64_t>(live) > most.first) {
      most = {static_cast<std::uint64_t>(live), at};
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
