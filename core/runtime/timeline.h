#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace shardrun::runtime {

/// The monotonic clock, which all processes of a machine share.
[[nodiscard]] inline std::int64_t now_in_nanoseconds() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Begin and end of instructions, in the order in which they ran. Room is reserved beforehand: recording allocates
/// nothing, and spans that do not fit are only counted.
class Timeline {
 public:
  /// Times are of now_in_nanoseconds().
  struct Span {
    std::uint32_t program = 0;
    std::uint32_t instruction = 0;
    std::int64_t begin = 0;
    std::int64_t end = 0;
    bool failed = false;  ///< the instruction threw
    // For a wait: the times at which its transfer began and ended; 0 if the transport does not report them.
    std::int64_t transfer_begun = 0;
    std::int64_t transfer_ended = 0;
  };

  explicit Timeline(std::size_t most) { spans_.reserve(most); }

  void add(const Span& span) noexcept {
    if (spans_.size() < spans_.capacity()) {
      spans_.push_back(span);
    } else {
      ++left_out_;
    }
  }

  [[nodiscard]] const std::vector<Span>& spans() const noexcept { return spans_; }
  [[nodiscard]] std::size_t left_out() const noexcept { return left_out_; }

 private:
  std::vector<Span> spans_;
  std::size_t left_out_ = 0;
};

}  // namespace shardrun::runtime
