#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
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
/// off). Elsewhere: plain lines, for the first and the last step, for each validation, each `log_every` steps (0: when
/// 10 s or a tenth of the run have passed), and for an activity that has lasted 10 s, 20 s, 40 s and so on.
/// A rate is that of the steps since the line before; at the end, of all. Any thread may call it.
class Progress {
 public:
  Progress(ProgressSink sink, std::int64_t total_steps, std::int64_t log_every, std::string unit = "tok");
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  ///< leave()

  void update(const ProgressUpdate& update);
  /// What is being done, until the next update or another one: "compiling", or `done` of `total` where there is one,
  /// "validating batch 3/20".
  void now_at(std::string_view what, std::int64_t done = 0, std::int64_t total = 0);
  /// Shows what has lasted for a while. To be called about once a second, if at all. A long gap between two ticks is
  /// taken for a time during which this process was stopped (Ctrl-Z); what remains to be done is estimated without it.
  void tick();
  /// Prints a line of its own, above the live one.
  void print(std::string_view line);
  /// Shows the last step and how long it all took since this was made, and leaves that line standing. Once, at the end.
  void finish();
  /// What others write from now on stands below the live line, and the activity ends: `tick` shows nothing until the
  /// next update or activity.
  void leave() noexcept;

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

  struct Activity {
    std::string what;  ///< empty: the step after the last one
    std::int64_t done = 0;
    std::int64_t total = 0;
    SteadyTime since;
    SteadyTime::duration line_due;  ///< how long it has lasted when it gets a line
  };

  struct Validation {
    double loss;
    std::int64_t step;
  };

  /// The time without standstills.
  [[nodiscard]] SteadyTime now() const;
  void notice_standstill();
  void begin(std::string_view what, SteadyTime now);
  void show(SteadyTime now);
  void write_line(SteadyTime now);
  void clear_line();
  [[nodiscard]] bool is_behind() const { return sink_.is_behind && sink_.is_behind(); }
  [[nodiscard]] bool due_as_line(const ProgressUpdate& update, SteadyTime now) const;
  [[nodiscard]] std::string activity_text(SteadyTime now) const;
  [[nodiscard]] std::string describe(SteadyTime now, std::size_t width) const;

  mutable std::mutex mutex_;  ///< guards all below
  ProgressSink sink_;
  std::int64_t total_;
  std::int64_t log_every_;
  std::string unit_;
  SteadyTime made_;

  std::optional<Origin> first_;  ///< the first update: where the estimate of what is left starts from
  ProgressUpdate last_;
  SteadyTime last_at_;
  std::optional<Validation> validation_;  ///< the last
  bool finished_ = false;
  std::int64_t shown_step_ = 0;
  SteadyTime shown_at_;
  Activity activity_;
  SteadyTime::duration longest_step_{};
  Rates unshown_;  ///< since a line was shown
  Rates all_;
  std::size_t live_width_ = 0;  ///< columns that the line on the screen takes; 0 where there is none
  bool is_left_ = false;
  std::optional<SteadyTime> ticked_at_;  ///< the last tick, by the sink's clock
  SteadyTime::duration longest_step_at_tick_{};
  SteadyTime::duration standstill_{};
};

}  // namespace shardrun::metrics
