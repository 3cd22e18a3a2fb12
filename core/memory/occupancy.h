#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <vector>

namespace shardrun::memory {

/// Bytes of an arena from `begin` up to, not including, `end`.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  auto operator<=>(const Range&) const = default;
  [[nodiscard]] bool exists() const noexcept { return begin < end; }
  [[nodiscard]] bool overlaps(const Range& other) const noexcept { return begin < other.end && other.begin < end; }
  [[nodiscard]] bool contains(const Range& other) const noexcept { return begin <= other.begin && other.end <= end; }
};

/// A set of bytes, as ascending ranges that do not touch each other.
class RangeSet {
 public:
  void add(Range range);
  [[nodiscard]] const std::vector<Range>& ranges() const noexcept { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

/// Records which bytes of an arena are taken at which instructions. It is a tree over the instructions. For each
/// stretch of instructions it has the ranges that are taken throughout the stretch, and those taken at some time in it.
/// A search looks only at the gaps between these, for any number of buffers and instructions.
class Occupancy {
 public:
  /// Nothing is taken at first. The instructions are 0 up to, not including, `instructions`.
  explicit Occupancy(std::int32_t instructions);

  /// Records that the range is taken from instruction `first` to `last`, inclusive.
  void add(std::int32_t first, std::int32_t last, Range range);

  /// An offset at which `size` bytes are free from `first` to `last`: the lowest of the tightest gaps, or, if no gap is
  /// large enough, the end of all bytes taken in this time. REQUIRES: size > 0.
  [[nodiscard]] std::uint64_t tightest(std::int32_t first, std::int32_t last, std::uint64_t size);

  /// The number of ranges that searches have looked at so far, which measures their cost.
  [[nodiscard]] std::size_t ranges_passed() const noexcept { return ranges_passed_; }

 private:
  /// A stretch of instructions. For a leaf, `leaves_` lists the ranges that are taken in a part of it only.
  struct Stretch {
    RangeSet throughout;  ///< without bytes that are taken throughout the parent stretch
    RangeSet sometime;    ///< includes `throughout`, and lacks the same bytes
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
  std::vector<std::vector<Taken>> leaves_;    ///< each sorted by the start of its ranges
  std::vector<Cursor> cursors_;               ///< of the running search
  std::array<std::vector<Range>, 2> edges_;   ///< of the running search: ranges taken in the leaves at its two ends
  std::size_t edges_used_ = 0;
  std::size_t ranges_passed_ = 0;
};

}  // namespace shardrun::memory
