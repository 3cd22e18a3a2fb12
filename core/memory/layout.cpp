#include "core/memory/layout.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

namespace shardrun::memory {
namespace {

bool overlap(const Interval& a, const Interval& b) noexcept { return a.first <= b.last && b.first <= a.last; }

/// Places intervals in the given order. `by_offset` holds those placed, ascending.
Layout place_in_order(std::span<const Interval> intervals, const std::vector<std::size_t>& order) {
  Layout layout{.offsets = std::vector<std::uint64_t>(intervals.size(), 0), .bytes = 0};
  std::vector<std::size_t> by_offset;
  for (const std::size_t i : order) {
    const std::uint64_t size = align_up(intervals[i].bytes);
    std::uint64_t end_of_gap_before = 0;
    std::uint64_t best_offset = 0;
    std::uint64_t best_gap = 0;
    bool found = false;
    for (const std::size_t j : by_offset) {
      if (!overlap(intervals[i], intervals[j])) {
        continue;
      }
      const std::uint64_t begin = layout.offsets[j];
      if (begin >= end_of_gap_before + size) {
        const std::uint64_t gap = begin - end_of_gap_before;
        if (!found || gap < best_gap) {
          found = true;
          best_gap = gap;
          best_offset = end_of_gap_before;
        }
      }
      end_of_gap_before = std::max(end_of_gap_before, begin + align_up(intervals[j].bytes));
    }
    layout.offsets[i] = found ? best_offset : end_of_gap_before;
    layout.bytes = std::max(layout.bytes, layout.offsets[i] + size);
    const auto at = std::upper_bound(by_offset.begin(), by_offset.end(), i, [&](std::size_t a, std::size_t b) {
      return layout.offsets[a] < layout.offsets[b];
    });
    by_offset.insert(at, i);
  }
  return layout;
}

}  // namespace

Layout place(std::span<const Interval> intervals) {
  std::vector<std::size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), 0);
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
