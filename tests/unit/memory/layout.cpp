#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>

#include "core/memory/layout.h"
#include "core/memory/occupancy.h"
#include "tests/support/catch.h"

using namespace shardrun::memory;

namespace {

bool overlap(const Interval& a, const Interval& b) { return a.first <= b.last && b.first <= a.last; }

/// What is wrong with a layout; "" if nothing is.
std::string fault_of(const std::vector<Interval>& intervals, const Layout& layout) {
  if (layout.offsets.size() != intervals.size()) {
    return "an interval has no offset";
  }
  std::uint64_t end = 0;
  for (std::size_t a = 0; a < intervals.size(); ++a) {
    end = std::max(end, layout.offsets[a] + align_up(intervals[a].bytes));
    if (layout.offsets[a] % alignment != 0) {
      return "not aligned: " + std::to_string(a);
    }
    for (std::size_t b = 0; b < a; ++b) {
      if (overlap(intervals[a], intervals[b]) && layout.offsets[a] < layout.offsets[b] + intervals[b].bytes &&
          layout.offsets[b] < layout.offsets[a] + intervals[a].bytes) {
        return "overlap: " + std::to_string(a) + " and " + std::to_string(b);
      }
    }
  }
  if (layout.bytes != end) {
    return "the size is not where the last one ends";
  }
  return layout.bytes < most_live(intervals).first ? "smaller than what lives at once" : "";
}

/// The most bytes that live at one instruction, counted instruction by instruction.
std::uint64_t most_live_slowly(const std::vector<Interval>& intervals) {
  std::uint64_t most = 0;
  for (const Interval& at : intervals) {
    std::uint64_t live = 0;
    for (const Interval& other : intervals) {
      live += other.first <= at.first && at.first <= other.last ? align_up(other.bytes) : 0;
    }
    most = std::max(most, live);
  }
  return most;
}

}  // namespace

TEST_CASE("layouts of random intervals never overlap", "[memory]") {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<Interval> intervals(random() % 60);
    const std::int32_t instructions = 1 + static_cast<std::int32_t>(random() % 40);
    for (Interval& interval : intervals) {
      interval.bytes = round % 3 == 0 ? random() % 200 : 64 * (random() % 5);
      interval.first = static_cast<std::int32_t>(random()) % instructions;
      interval.first = std::abs(interval.first);
      interval.last = interval.first + static_cast<std::int32_t>(random() % 10);
    }
    INFO("round " << round);
    CHECK(fault_of(intervals, place(intervals)).empty());
    CHECK(most_live(intervals).first == most_live_slowly(intervals));
  }
}

namespace {

/// Places the intervals in one order, largest first: each in the tightest gap between all that live at the same time.
std::vector<std::uint64_t> largest_first_slowly(const std::vector<Interval>& intervals) {
  std::vector<std::size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return intervals[a].bytes > intervals[b].bytes; });
  std::vector<std::uint64_t> offsets(intervals.size());
  std::vector<std::pair<std::uint64_t, std::size_t>> placed;
  for (const std::size_t i : order) {
    const std::uint64_t size = align_up(intervals[i].bytes);
    std::uint64_t end = 0;
    std::uint64_t gap = UINT64_MAX;
    for (const auto& [begin, other] : placed) {
      if (overlap(intervals[other], intervals[i])) {
        if (begin >= end + size && begin - end < gap) {
          gap = begin - end;
          offsets[i] = end;
        }
        end = std::max(end, begin + align_up(intervals[other].bytes));
      }
    }
    offsets[i] = gap == UINT64_MAX ? end : offsets[i];
    placed.emplace_back(offsets[i], i);
    std::sort(placed.begin(), placed.end());
  }
  return offsets;
}

}  // namespace

TEST_CASE("many intervals are placed where an exhaustive search places them", "[memory]") {
  std::mt19937 random(2);
  int rounds_of_first_order = 0;  // in the other rounds, another order needs less
  for (int round = 0; round < 6; ++round) {
    std::vector<Interval> intervals;
    constexpr std::int32_t layers = 150;
    for (std::int32_t layer = 0; layer < layers; ++layer) {
      for (int tensor = 0; tensor < 3; ++tensor) {
        intervals.push_back({64 * (1 + random() % 4), layer, 2 * layers - layer});
        const std::int32_t at = static_cast<std::int32_t>(random() % (2 * layers));
        intervals.push_back({64 * (1 + random() % 9), at, at + static_cast<std::int32_t>(random() % 3)});
      }
    }
    const Layout layout = place(intervals);
    const std::vector<std::uint64_t> slowly = largest_first_slowly(intervals);
    INFO("round " << round);
    CHECK(fault_of(intervals, layout).empty());
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < intervals.size(); ++i) {
      end = std::max(end, slowly[i] + align_up(intervals[i].bytes));
    }
    CHECK(layout.bytes <= end);
    if (layout.bytes == end) {
      CHECK(layout.offsets == slowly);
      ++rounds_of_first_order;
    }
  }
  CHECK(rounds_of_first_order > 0);
}

TEST_CASE("intervals that never overlap share one place", "[memory]") {
  std::vector<Interval> chain;
  for (std::int32_t i = 0; i < 50; ++i) {
    chain.push_back({1000, i, i});
  }
  CHECK(place(chain).bytes == align_up(1000));
}

TEST_CASE("intervals that overlap are stacked without a gap", "[memory]") {
  const std::vector<Interval> together = {{100, 0, 9}, {1, 0, 9}, {64, 3, 3}, {65, 0, 3}};
  const Layout layout = place(together);
  CHECK(fault_of(together, layout).empty());
  CHECK(layout.bytes == 128 + 64 + 64 + 128);
}

TEST_CASE("values that backward reads in reverse order need no more than the most live bytes", "[memory]") {
  std::vector<Interval> intervals;
  constexpr std::int32_t layers = 40;
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    intervals.push_back({4096, layer, 2 * layers - layer});
    intervals.push_back({16384, layer, layer});
    intervals.push_back({16384, 2 * layers - layer, 2 * layers - layer});
  }
  const Layout layout = place(intervals);
  CHECK(fault_of(intervals, layout).empty());
  CHECK(layout.bytes == most_live(intervals).first);
}

TEST_CASE("hard cases are laid out soundly", "[memory]") {
  // A case in which placing the largest first leaves a hole; and a comb whose teeth end one after the other.
  const std::vector<Interval> hole = {{640, 0, 1}, {320, 1, 2}, {640, 2, 3}, {320, 0, 0}, {320, 3, 3}, {960, 4, 4}};
  std::vector<Interval> comb;
  for (std::int32_t i = 0; i < 64; ++i) {
    comb.push_back({static_cast<std::uint64_t>(64 * (1 + i % 7)), i, 96 - i / 2});
  }
  CHECK(fault_of(hole, place(hole)).empty());
  CHECK(fault_of(comb, place(comb)).empty());
  const std::vector<Interval> nothing;
  CHECK(place(nothing).bytes == 0);
  const std::vector<Interval> empty = {{0, 0, 5}, {64, 0, 5}, {0, 2, 2}};
  CHECK(fault_of(empty, place(empty)).empty());
  CHECK(place(empty).bytes == 64);
}

TEST_CASE("the most live bytes are found, and where", "[memory]") {
  CHECK(most_live(std::vector<Interval>{}) == std::pair<std::uint64_t, std::int32_t>(0, 0));
  CHECK(most_live(std::vector<Interval>{{64, 0, 3}, {64, 3, 5}, {192, 4, 4}}) ==
        std::pair<std::uint64_t, std::int32_t>(256, 4));
  CHECK(most_live(std::vector<Interval>{{1, 2, 2}, {1, 3, 3}}) == std::pair<std::uint64_t, std::int32_t>(64, 2));
}

TEST_CASE("a page that several ranges touch counts once", "[memory]") {
  CHECK(touched_bytes({}) == 0);
  CHECK(touched_bytes({{5000, 0}}) == 0);
  CHECK(touched_bytes({{0, 1}}) == page_bytes);
  CHECK(touched_bytes({{4095, 2}}) == 2 * page_bytes);
  CHECK(touched_bytes({{8192, 4096}, {0, 4096}}) == 2 * page_bytes);
  CHECK(touched_bytes({{0, 20000}, {64, 64}, {4096, 4096}, {19000, 3000}}) == 6 * page_bytes);

  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges(random() % 10);
    std::set<std::uint64_t> pages;
    for (auto& [offset, bytes] : ranges) {
      offset = random() % 100000;
      bytes = random() % 9000;
      for (std::uint64_t at = offset; at < offset + bytes; ++at) {
        pages.insert(at / page_bytes);
      }
    }
    CHECK(touched_bytes(ranges) == pages.size() * page_bytes);
  }
}

namespace {

struct Taken {
  std::int32_t first = 0;
  std::int32_t last = 0;
  Range range;
};

/// Searches all that is taken, in the order of `begin`.
std::uint64_t tightest_slowly(std::vector<Taken> all, std::int32_t first, std::int32_t last, std::uint64_t size) {
  std::sort(all.begin(), all.end(), [](const Taken& a, const Taken& b) { return a.range.begin < b.range.begin; });
  std::uint64_t end = 0;
  std::uint64_t gap = UINT64_MAX;
  std::uint64_t offset = 0;
  for (const Taken& each : all) {
    if (each.first > last || first > each.last) {
      continue;
    }
    if (each.range.begin >= end + size && each.range.begin - end < gap) {
      gap = each.range.begin - end;
      offset = end;
    }
    end = std::max(end, each.range.end);
  }
  return gap == UINT64_MAX ? end : offset;
}

}  // namespace

TEST_CASE("bytes that touch become one range", "[memory]") {
  RangeSet set;
  set.add({10, 20});
  set.add({30, 40});
  set.add({50, 60});
  CHECK(set.ranges().size() == 3);
  set.add({20, 30});
  REQUIRE(set.ranges().size() == 2);
  CHECK((set.ranges()[0].begin == 10 && set.ranges()[0].end == 40));
  set.add({0, 55});
  REQUIRE(set.ranges().size() == 1);
  CHECK((set.ranges()[0].begin == 0 && set.ranges()[0].end == 60));
}

TEST_CASE("the tightest gap equals that of an exhaustive search", "[memory]") {
  std::mt19937 random(3);
  const auto below = [&](std::int32_t end) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(end));
  };
  // Numbers of instructions for less than a leaf, for about two levels, and for more than three.
  for (const std::int32_t instructions : {1, 5, 16, 17, 130, 2000, 20000}) {
    Occupancy occupancy(instructions);
    std::vector<Taken> all;
    for (int i = 0; i < 600; ++i) {
      const std::int32_t first = below(instructions);
      const std::int32_t longest = i % 4 == 0 ? instructions : 1 + instructions / 100;
      const std::int32_t last = std::min(instructions - 1, first + below(longest));
      const std::uint64_t size = 64 * (1 + random() % 9);
      const std::uint64_t offset = occupancy.tightest(first, last, size);
      INFO("instructions " << instructions << ", number " << i << ": " << first << " to " << last);
      REQUIRE(offset == tightest_slowly(all, first, last, size));
      // Some ranges overlap others that live, which does not matter here. Some leave a hole.
      const std::uint64_t at = i % 5 == 0 ? 64 * (random() % 300) : offset;
      occupancy.add(first, last, {at, at + size});
      all.push_back({first, last, {at, at + size}});
    }
  }
}

TEST_CASE("the cost of a search does not grow with the number of earlier buffers", "[memory]") {
  // As in a pipeline: each microbatch keeps tensors of some sizes for some time, and others for an instruction.
  const auto passed_by_one = [](std::int32_t microbatches) {
    constexpr std::int32_t instructions = 20;
    constexpr std::int32_t kept = 8;  // microbatches at a time
    Occupancy occupancy(instructions * (microbatches + kept));
    std::size_t searches = 0;
    for (const std::uint64_t size : {640U, 320U, 64U}) {
      for (std::int32_t m = 0; m < microbatches; ++m) {
        for (std::int32_t i = 0; i < instructions; ++i, ++searches) {
          const std::int32_t first = m * instructions + i;
          const std::int32_t last = i % 5 == 0 ? first + kept * instructions : first;
          const std::uint64_t offset = occupancy.tightest(first, last, size);
          occupancy.add(first, last, {offset, offset + size});
        }
      }
    }
    return static_cast<double>(occupancy.ranges_passed()) / static_cast<double>(searches);
  };
  CHECK(passed_by_one(320) < 1.2 * passed_by_one(40));
}
