#include "core/memory/occupancy.h"

#include <algorithm>
#include <limits>

namespace shardrun::memory {
namespace {

constexpr int leaf_bits = 4;     // a leaf has 2^leaf_bits instructions
constexpr int fan_out_bits = 3;  // a stretch has 2^fan_out_bits children

constexpr int bits_of(std::size_t level) { return leaf_bits + fan_out_bits * static_cast<int>(level); }

/// The instructions of a stretch, first and last.
struct Bounds {
  std::int64_t first;
  std::int64_t last;
};

Bounds bounds_of(std::size_t level, std::size_t number) {
  const auto first = static_cast<std::int64_t>(number << bits_of(level));
  return {first, first + (std::int64_t{1} << bits_of(level)) - 1};
}

}  // namespace

void RangeSet::add(Range range) {
  const auto ends_before = [](const Range& other, std::uint64_t begin) { return other.end < begin; };
  const auto first = std::lower_bound(ranges_.begin(), ranges_.end(), range.begin, ends_before);
  if (first == ranges_.end() || first->begin > range.end) {
    ranges_.insert(first, range);
    return;
  }
  first->begin = std::min(first->begin, range.begin);
  auto last = first;  // the last range that touches the new one
  while (last + 1 != ranges_.end() && (last + 1)->begin <= range.end) {
    ++last;
  }
  first->end = std::max(last->end, range.end);
  ranges_.erase(first + 1, last + 1);
}

Occupancy::Occupancy(std::int32_t instructions) {
  const std::size_t count = static_cast<std::size_t>(std::max(instructions, 1)) - 1;
  do {
    levels_.emplace_back((count >> bits_of(levels_.size())) + 1);
  } while (levels_.back().size() > 1);
  leaves_.resize(levels_.front().size());
}

void Occupancy::add(std::int32_t first, std::int32_t last, Range range) {
  add(levels_.size() - 1, 0, {range, first, last});
}

void Occupancy::add(std::size_t level, std::size_t number, const Taken& taken) {
  Stretch& stretch = levels_[level][number];
  const Bounds bounds = bounds_of(level, number);
  stretch.sometime.add(taken.range);
  if (taken.first <= bounds.first && bounds.last <= taken.last) {
    stretch.throughout.add(taken.range);
  } else if (level == 0) {
    std::vector<Taken>& leaf = leaves_[number];
    const auto behind = [](std::uint64_t begin, const Taken& other) { return begin < other.range.begin; };
    leaf.insert(std::upper_bound(leaf.begin(), leaf.end(), taken.range.begin, behind), taken);
  } else {
    const int below = bits_of(level - 1);
    const auto begin = static_cast<std::size_t>(std::max<std::int64_t>(taken.first, bounds.first)) >> below;
    const auto end = static_cast<std::size_t>(std::min<std::int64_t>(taken.last, bounds.last)) >> below;
    for (std::size_t child = begin; child <= end; ++child) {
      add(level - 1, child, taken);
    }
  }
}

std::uint64_t Occupancy::tightest(std::int32_t first, std::int32_t last, std::uint64_t size) {
  cursors_.clear();
  edges_used_ = 0;
  look_at(levels_.size() - 1, 0, first, last);
  constexpr std::uint64_t nowhere = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t tightest = nowhere;
  std::uint64_t offset = 0;
  std::uint64_t free_from = 0;
  while (true) {
    std::uint64_t next = nowhere;  // the next taken byte after `free_from`
    for (bool moved = true; moved;) {
      moved = false;
      next = nowhere;
      for (Cursor& cursor : cursors_) {
        for (; cursor.at != cursor.end && cursor.at->begin <= free_from; ++cursor.at) {
          moved = moved || cursor.at->end > free_from;
          free_from = std::max(free_from, cursor.at->end);
          ++ranges_passed_;
        }
        next = cursor.at == cursor.end ? next : std::min(next, cursor.at->begin);
      }
    }
    if (next == nowhere) {
      return tightest == nowhere ? free_from : offset;
    }
    const std::uint64_t gap = next - free_from;
    if (gap == size) {
      return free_from;
    }
    if (gap > size && gap < tightest) {
      tightest = gap;
      offset = free_from;
    }
    free_from = next;
  }
}

void Occupancy::look_at(std::size_t level, std::size_t number, std::int32_t first, std::int32_t last) {
  const Stretch& stretch = levels_[level][number];
  const Bounds bounds = bounds_of(level, number);
  if (first <= bounds.first && bounds.last <= last) {
    look_at(stretch.sometime.ranges());
    return;
  }
  look_at(stretch.throughout.ranges());
  if (level == 0) {
    std::vector<Range>& edge = edges_[edges_used_++];
    edge.clear();
    ranges_passed_ += leaves_[number].size();
    for (const Taken& taken : leaves_[number]) {
      if (taken.first <= last && first <= taken.last) {
        edge.push_back(taken.range);
      }
    }
    look_at(edge);
    return;
  }
  const int below = bits_of(level - 1);
  const auto begin = static_cast<std::size_t>(std::max<std::int64_t>(first, bounds.first)) >> below;
  const auto end = static_cast<std::size_t>(std::min<std::int64_t>(last, bounds.last)) >> below;
  for (std::size_t child = begin; child <= end; ++child) {
    look_at(level - 1, child, first, last);
  }
}

void Occupancy::look_at(const std::vector<Range>& ranges) {
  if (!ranges.empty()) {
    cursors_.push_back({ranges.data(), ranges.data() + ranges.size()});
  }
}

}  // namespace shardrun::memory
