#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shardrun::runtime {

/// When instructions began and ended, in the order in which they were run. Room for them is taken beforehand: a call
/// that is recorded allocates nothing, and what does not fit is only counted.
class Timeline {
 public:
  /// Nanoseconds of the monotonic clock, which all processes of a machine share.
  struct Span {
    std::uint32_t program = 0;
    std::uint32_t instruction = 0;
    std::int64_t begin = 0;
    std::int64_t end = 0;
    bool failed = false;  ///< it threw
    // Of a wait: when its transfer was under way, where the transport says so; else 0.
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
