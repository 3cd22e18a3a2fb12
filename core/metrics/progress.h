#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace shardrun::metrics {

using SteadyTime = std::chrono::steady_clock::time_point;

/// Where progress is shown, and by which clock.
struct ProgressSink {
  std::function<void(std::string_view)> write;
  bool is_terminal = false;            ///< lines can be rewritten
  std::function<std::size_t()> width;  ///< columns of the terminal at this moment; called on a terminal only
  std::function<SteadyTime()> now;
  std::function<bool()> is_behind;  ///< whether an update may be left out, where the screen is slow; may be empty
};

/// A sink over a file descriptor, which it does not own. It counts as a terminal where it is one and `term` (what TERM
/// says, null if nothing) is not "dumb". What cannot be written is dropped: progress is not worth a run.
[[nodiscard]] ProgressSink descriptor_sink(int fd, const char* term);

struct ProgressUpdate {
  std::int64_t step = 0;           ///< steps that are done
  std::optional<double> loss;      ///< of a task that has one
  std::optional<double> val_loss;  ///< where it was measured after this step
  double rate = 0;                 ///< of this step: per second, in the unit that Progress was made with
};

/// Shows how a run goes. On a terminal: one line that is rewritten in place, at most ten times a second, never wider
/// than the terminal, with nothing but carriage returns and spaces (no escape sequence, so NO_COLOR has nothing to turn
/// off). Elsewhere: plain lines, for the first and the last step, for each validation, and each `log_every` steps (0:
/// when 10 s or a tenth of the run have passed). A rate is that of the steps since the
/// line before; at the end, of all.
class Progress {
 public:
  Progress(ProgressSink sink, std::int64_t total_steps, std::int64_t log_every, std::string unit = "tok");

  void update(const ProgressUpdate& update);
  /// Prints a line of its own, above the live one.
  void print(std::string_view line);
  /// Shows the last step and how long it all took since this was made, and leaves that line standing. Once, at the end.
  void finish();

 private:
  struct Origin {
    std::int64_t step;
    SteadyTime at;
  };

  /// Of several steps that are alike.
  struct Rates {
    std::int64_t steps = 0;
    double inverses = 0;

    void add(double rate);
    [[nodiscard]] double together() const;
  };

  void show(SteadyTime now);
  void write_line(SteadyTime now);
  [[nodiscard]] bool due_as_line(const ProgressUpdate& update, SteadyTime now) const;
  [[nodiscard]] std::string describe(SteadyTime now, std::size_t width) const;

  ProgressSink sink_;
  std::int64_t total_;
  std::int64_t log_every_;
  std::string unit_;
  SteadyTime made_;

  std::optional<Origin> first_;  ///< the first update: where the estimate of what is left starts from
  ProgressUpdate last_;
  std::optional<double> val_loss_;  ///< the last that was measured
  bool finished_ = false;
  std::int64_t shown_step_ = 0;
  SteadyTime shown_at_;
  Rates unshown_;  ///< since a line was shown
  Rates all_;
  std::size_t live_width_ = 0;  ///< columns that the line on the screen takes; 0 where there is none
};

}  // namespace shardrun::metrics
