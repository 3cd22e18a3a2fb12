#include "core/memory/occupancy.h"

#include <algorithm>
#include <random>

#include "tests/support/catch.h"

using namespace shardrun::memory;

namespace {

struct Taken {
  std::int32_t first = 0;
  std::int32_t last = 0;
  Range range;
};

/// Goes through everything that is taken, by its begin.
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

TEST_CASE("the tightest gap is the one that a search through everything finds", "[memory]") {
  std::mt19937 random(3);
  const auto below = [&](std::int32_t end) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(end));
  };
  // Less than a leaf; about two levels; more than three.
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
      // Some are put where others live, as nothing here depends on it; some behind a hole.
      const std::uint64_t at = i % 5 == 0 ? 64 * (random() % 300) : offset;
      occupancy.add(first, last, {at, at + size});
      all.push_back({first, last, {at, at + size}});
    }
  }
}

TEST_CASE("what a search costs does not grow with the buffers that were there before", "[memory]") {
  // As in a pipeline: each microbatch keeps tensors of some sizes for some time, and others for an instruction.
  const auto passed_by_one = [](std::int32_t microbatches) {
    constexpr std::int32_t instructions = 20;
    constexpr std::int32_t kept = 8;  // microbatches at a time
    Occupancy occupancy(instructions * (microbatches + kept));
    std::size_t searches = 0;
    for (const std::uint64_t size : {640, 320, 64}) {
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
