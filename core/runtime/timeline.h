#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace shardrun::runtime {

/// The monotonic clock, which all processes of a machine share.
[[nodiscard]] inline std::int64_t now_in_nanoseconds() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// The begin and the end of instructions, in the order in which they ran. Their memory is reserved beforehand:
/// recording them allocates nothing, and spans that do not fit are only counted. Also records what an engine does.
class Timeline {
 public:
  /// A run of an instruction. Times are those of now_in_nanoseconds().
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

  /// A call of an engine's function, or of one of its operations.
  struct Call {
    enum class Kind : std::uint8_t {
      engine,     ///< the engine's code
      host,       ///< what the host does between two such calls
      operation,  ///< an operation that the engine or the host called
    };
    Kind kind = Kind::engine;
    std::string name;
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t bytes = 0;  ///< of the array with which an operation is called
    bool failed = false;
  };

  /// A transfer that an engine's operation made. Times that are not known yet are 0.
  struct Moved {
    enum class Kind : std::uint8_t { collective, send, receive };
    Kind kind = Kind::collective;
    std::string name;
    std::string message;  ///< the same at both ends; "" for a collective
    std::int64_t bytes = 0;
    std::int64_t start_begin = 0;
    std::int64_t start_end = 0;
    std::int64_t wait_begin = 0;
    std::int64_t wait_end = 0;  ///< when it was complete
    // 0 if the transport does not report them, as in Span.
    std::int64_t begun = 0;
    std::int64_t ended = 0;
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

  // The largest number of calls, and of transfers, kept for an engine. Others are only counted.
  static constexpr std::size_t most_of_engine = 100'000;

  void add(Call call) { add(calls_, std::move(call)); }
  /// Returns the place of the transfer in `moved()`, or a number beyond the end if it does not fit.
  std::size_t add(Moved moved) {
    const std::size_t place = moved_.size() < most_of_engine ? moved_.size() : most_of_engine;
    add(moved_, std::move(moved));
    return place;
  }
  /// The transfer at that place; null if there is none.
  [[nodiscard]] Moved* moved_at(std::size_t place) noexcept { return place < moved_.size() ? &moved_[place] : nullptr; }
  /// The calls, in the order in which they ended.
  [[nodiscard]] const std::vector<Call>& calls() const noexcept { return calls_; }
  [[nodiscard]] const std::vector<Moved>& moved() const noexcept { return moved_; }

 private:
  template <class Record>
  void add(std::vector<Record>& all, Record record) {
    if (all.size() < most_of_engine) {
      all.push_back(std::move(record));
    } else {
      ++left_out_;
    }
  }

  std::vector<Span> spans_;
  std::vector<Call> calls_;
  std::vector<Moved> moved_;
  std::size_t left_out_ = 0;
};

}  // namespace shardrun::runtime
