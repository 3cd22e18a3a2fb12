#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace shardrun::screen {

using SteadyTime = std::chrono::steady_clock::time_point;

/// The place where progress is written, with a clock.
struct ProgressSink {
  std::function<void(std::string_view)> write;
  bool is_terminal = false;            ///< whether lines can be rewritten
  std::function<std::size_t()> width;  ///< the terminal's present columns; called only if it is a terminal
  std::function<SteadyTime()> now;
  std::function<bool()> is_behind;  ///< whether to skip an update because the screen is slow; empty: never
};

/// A sink that writes to a file descriptor, which the caller owns. The sink is a terminal if the descriptor is one and
/// `term` (the value of TERM, or null) is not null, "" or "dumb". Output that cannot be written is dropped: progress
/// never makes a run fail.
[[nodiscard]] ProgressSink descriptor_sink(int fd, const char* term);

/// A line on a terminal that is rewritten in place, by carriage returns and spaces alone, so NO_COLOR does not matter.
class LiveLine {
 public:
  /// `sink` must outlive this object.
  explicit LiveLine(const ProgressSink& sink) : sink_(sink) {}

  /// The largest length of the line. The terminal's last column stays free, because some terminals wrap a line as soon
  /// as that column is written.
  [[nodiscard]] std::size_t room() const { return std::max<std::size_t>(sink_.width(), 2) - 1; }
  [[nodiscard]] bool is_shown() const noexcept { return width_ > 0; }
  /// Shows `text`, cut to fit, instead of the shown line.
  void write(std::string_view text);
  void clear();
  /// Leaves the shown line; later output goes below it.
  void keep();

 private:
  const ProgressSink& sink_;
  std::size_t width_ = 0;  ///< columns on the screen
};

struct ProgressUpdate {
  std::int64_t step = 0;           ///< steps done
  std::optional<double> loss;      ///< for tasks that have one
  std::optional<double> val_loss;  ///< if it was measured after this step
  double rate = 0;                 ///< units of Progress that this step processed per second
};

/// Shows the progress of a run.
/// - On a terminal: as a LiveLine, which steps rewrite at most ten times a second.
/// - Elsewhere: as plain lines for the first and the last step, for each validation, every `log_every` steps (0: after
///   10 s or a tenth of the run), and for an activity that has lasted 10 s, 20 s, 40 s and so on.
/// A rate covers the steps since the previous line; at the end, all steps. Any thread can call the functions.
class Progress {
 public:
  Progress(ProgressSink sink, std::int64_t total_steps, std::int64_t log_every, std::string unit = "tok");
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  ///< calls leave()

  void update(const ProgressUpdate& update);
  /// Sets the current activity, until the next update or activity. It is shown as "compiling", with `done` and `total`
  /// as "validating batch 3/20", and with an unknown total (0) as "generating token 3".
  void now_at(std::string_view what, std::int64_t done = 0, std::int64_t total = 0);
  /// Shows an activity or a step that has lasted for a while. Call it about once a second, or never. A long gap between
  /// two calls counts as time in which this process was stopped (Ctrl-Z). The estimate of the remaining time omits it.
  void tick();
  /// Prints a line above the progress line.
  void print(std::string_view line);
  /// Shows the last step, if there is one, and the time since construction, and keeps that line. Call it at the end.
  void finish();
  /// Keeps a line that shows a step, so that later output of others goes below it, and removes a line that shows an
  /// activity alone. `tick` shows nothing until the next update or activity.
  void leave() noexcept;

 private:
  struct Origin {
    std::int64_t step;
    SteadyTime at;
  };

  /// The rate of several similar steps together: the harmonic mean of their rates. Rates of 0 do not count.
  struct Rates {
    std::int64_t steps = 0;
    double inverses = 0;

    void add(double rate);
    [[nodiscard]] double together() const;
  };

  struct Activity {
    std::string what;  ///< empty: the step that follows the last one
    std::int64_t done = 0;
    std::int64_t total = 0;
    SteadyTime since;
    SteadyTime::duration line_due;  ///< the activity gets its next line when it has lasted so long
  };

  struct Validation {
    double loss;
    std::int64_t step;
  };

  /// The sink's time less all time in which the process was stopped.
  [[nodiscard]] SteadyTime now() const;
  void notice_standstill();
  void begin(std::string_view what, SteadyTime now);
  void show(SteadyTime now);
  void write_line(SteadyTime now);
  [[nodiscard]] bool is_behind() const { return sink_.is_behind && sink_.is_behind(); }
  [[nodiscard]] bool due_as_line(const ProgressUpdate& update, SteadyTime now) const;
  [[nodiscard]] std::string activity_text(SteadyTime now) const;
  [[nodiscard]] std::string describe(SteadyTime now, std::size_t width) const;

  mutable std::mutex mutex_;  ///< guards all members below
  ProgressSink sink_;
  std::int64_t total_;
  std::int64_t log_every_;
  std::string unit_;
  SteadyTime made_;

  std::optional<Origin> first_;  ///< the first update, from which the estimate of the remaining time starts
  ProgressUpdate last_;
  SteadyTime last_at_;
  std::optional<Validation> validation_;  ///< the latest
  bool finished_ = false;
  std::int64_t shown_step_ = 0;
  SteadyTime shown_at_;
  Activity activity_;
  SteadyTime::duration longest_step_{};
  Rates unshown_;  ///< since the last line
  Rates all_;
  LiveLine line_{sink_};
  bool is_left_ = false;
  std::optional<SteadyTime> ticked_at_;  ///< the last tick, by the sink's clock
  SteadyTime::duration longest_step_at_tick_{};
  SteadyTime::duration standstill_{};
};

/// Calls a function about once per interval, on a separate thread, until it is destroyed. The destructor waits for a
/// running call.
class Ticker {
 public:
  /// If `tick` throws, the ticking just ends. The constructor throws Error{io} if the thread cannot be started.
  Ticker(std::chrono::milliseconds interval, std::function<void()> tick);
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;
  ~Ticker();

 private:
  std::mutex mutex_;  ///< guards ending_
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace shardrun::screen
