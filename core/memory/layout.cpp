#include "core/memory/layout.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace shardrun::memory {
namespace {

/// An interval in its place.
struct Placed {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::int32_t first = 0;
  std::int32_t last = 0;
};

/// The tightest gap of `size` bytes or more that a search has come past.
struct Tightest {
  std::uint64_t size = 0;
  std::uint64_t end_of_gap_before = 0;
  std::uint64_t offset = 0;
  std::uint64_t gap = std::numeric_limits<std::uint64_t>::max();

  void pass(const Placed& other) {
    if (other.begin >= end_of_gap_before + size && other.begin - end_of_gap_before < gap) {
      gap = other.begin - end_of_gap_before;
      offset = end_of_gap_before;
    }
    end_of_gap_before = std::max(end_of_gap_before, other.end);
  }
};

/// Neighbours by offset, with what lets a search pass all of them at once.
class Block {
 public:
  explicit Block(std::vector<Placed> placed) : placed_(std::move(placed)) { sum_up(); }

  [[nodiscard]] std::uint64_t begin() const { return placed_.front().begin; }

  /// Past those that live at the same time; whether none can be tighter.
  [[nodiscard]] bool pass(Tightest& search, const Interval& interval) const {
    if (first_.first > interval.last || interval.first > last_.second) {
      return false;
    }
    const bool all = first_.second <= interval.last && interval.first <= last_.first;
    if (all && widest_gap_ < search.size) {
      search.pass(placed_.front());
      search.end_of_gap_before = std::max(search.end_of_gap_before, end_);
      return search.gap == search.size;
    }
    for (const Placed& other : placed_) {
      if (other.first <= interval.last && interval.first <= other.last) {
        search.pass(other);
        if (search.gap == search.size) {
          return true;
        }
      }
    }
    return false;
  }

  void insert(const Placed& placed) {
    const auto behind = [](std::uint64_t begin, const Placed& other) { return begin < other.begin; };
    placed_.insert(std::upper_bound(placed_.begin(), placed_.end(), placed.begin, behind), placed);
    sum_up();
  }

  /// The upper half, which leaves it, once there are too many to go through one by one.
  [[nodiscard]] std::optional<Block> split() {
    constexpr std::size_t most = 64;
    if (placed_.size() < most) {
      return std::nullopt;
    }
    const auto middle = placed_.begin() + most / 2;
    Block upper(std::vector<Placed>(middle, placed_.end()));
    placed_.erase(middle, placed_.end());
    sum_up();
    return upper;
  }

 private:
  void sum_up() {
    first_ = {placed_.front().first, placed_.front().first};
    last_ = {placed_.front().last, placed_.front().last};
    end_ = placed_.front().end;
    widest_gap_ = 0;
    for (const Placed& each : placed_) {
      first_ = {std::min(first_.first, each.first), std::max(first_.second, each.first)};
      last_ = {std::min(last_.first, each.last), std::max(last_.second, each.last)};
      widest_gap_ = std::max(widest_gap_, each.begin > end_ ? each.begin - end_ : 0);
      end_ = std::max(end_, each.end);
    }
  }

  std::vector<Placed> placed_;                   ///< not empty
  std::pair<std::int32_t, std::int32_t> first_;  ///< the least and the greatest of theirs
  std::pair<std::int32_t, std::int32_t> last_;
  std::uint64_t end_ = 0;         ///< of all
  std::uint64_t widest_gap_ = 0;  ///< between them, if all live
};

/// What has been placed, by offset.
class ByOffset {
 public:
  /// Where `size` bytes fit in the tightest gap between those that live at the same time, or behind them.
  [[nodiscard]] std::uint64_t tightest(const Interval& interval, std::uint64_t size) const {
    Tightest search{.size = size};
    for (const Block& block : blocks_) {
      if (block.pass(search, interval)) {
        break;
      }
    }
    const bool found = search.gap != std::numeric_limits<std::uint64_t>::max();
    return found ? search.offset : search.end_of_gap_before;
  }

  void insert(const Placed& placed) {
    if (blocks_.empty()) {
      blocks_.emplace_back(std::vector{placed});
      return;
    }
    const auto behind = [](std::uint64_t begin, const Block& block) { return begin < block.begin(); };
    auto block = std::upper_bound(blocks_.begin(), blocks_.end(), placed.begin, behind);
    block -= block == blocks_.begin() ? 0 : 1;
    block->insert(placed);
    if (std::optional<Block> upper = block->split()) {
      blocks_.insert(block + 1, std::move(*upper));
    }
  }

 private:
  std::vector<Block> blocks_;
};

/// Places intervals in the given order.
Layout place_in_order(std::span<const Interval> intervals, const std::vector<std::size_t>& order) {
  Layout layout{.offsets = std::vector<std::uint64_t>(intervals.size(), 0), .bytes = 0};
  ByOffset placed;
  for (const std::size_t i : order) {
    const Interval& interval = intervals[i];
    const std::uint64_t size = align_up(interval.bytes);
    const std::uint64_t offset = placed.tightest(interval, size);
    layout.offsets[i] = offset;
    layout.bytes = std::max(layout.bytes, offset + size);
    placed.insert({offset, offset + size, interval.first, interval.last});
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
