#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace shardrun::memory {

/// Bytes of an arena from `begin` up to, not including, `end`.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// A set of bytes: disjoint ranges, ascending, no two of which touch.
class RangeSet {
 public:
  void add(Range range);
  [[nodiscard]] const std::vector<Range>& ranges() const noexcept { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

/// Which bytes of an arena buffers have at which instructions. A tree over the instructions knows of each stretch what
/// is taken throughout it and what is taken at some time in it, as unions of ranges: a search looks at the holes
/// between what is live, whatever the number of buffers and of instructions.
class Occupancy {
 public:
  /// Of instructions 0 up to, not including, `instructions`.
  explicit Occupancy(std::int32_t instructions);

  /// The range is taken from instruction `first` to `last`, inclusive.
  void add(std::int32_t first, std::int32_t last, Range range);

  /// Where `size` bytes are free from `first` to `last`: the lowest of the tightest gaps between what is taken at some
  /// time in between, or behind all of it. REQUIRES: size > 0.
  [[nodiscard]] std::uint64_t tightest(std::int32_t first, std::int32_t last, std::uint64_t size);

  /// Ranges that searches have gone past so far: what they have cost.
  [[nodiscard]] std::size_t ranges_passed() const noexcept { return ranges_passed_; }

 private:
  /// A stretch of instructions. Of a leaf, `taken` lists what begins or ends within it.
  struct Stretch {
    RangeSet throughout;  ///< of what is not taken throughout the stretch above it
    RangeSet sometime;    ///< `throughout` too
  };
  struct Taken {
    Range range;
    std::int32_t first = 0;
    std::int32_t last = 0;
  };
  struct Cursor {
    const Range* at = nullptr;
    const Range* end = nullptr;
  };

  void add(std::size_t level, std::size_t number, const Taken& taken);
  void look_at(std::size_t level, std::size_t number, std::int32_t first, std::int32_t last);
  void look_at(const std::vector<Range>& ranges);

  std::vector<std::vector<Stretch>> levels_;  ///< leaves first; the last is one stretch
  std::vector<std::vector<Taken>> leaves_;    ///< each by its range's begin
  std::vector<Cursor> cursors_;               ///< of a search
  std::array<std::vector<Range>, 2> edges_;   ///< of a search: what is taken in the leaves where it begins and ends
  std::size_t edges_used_ = 0;
  std::size_t ranges_passed_ = 0;
};

}  // namespace shardrun::memory
