#pragma once

#include <exception>

namespace shardrun {

/// Thrown by stop_point(): the process was asked to stop during work that may be left unfinished. It is not an Error,
/// because nothing failed. Code that adds text to errors must not catch it.
class Stopped : public std::exception {
 public:
  explicit Stopped(int signal) noexcept : signal_(signal) {}
  [[nodiscard]] int signal() const noexcept { return signal_; }
  [[nodiscard]] const char* what() const noexcept override { return "asked to stop"; }

 private:
  int signal_;
};

/// Asks this process to stop at its next stop_point(). Only the first signal counts. Async-signal-safe; any thread may
/// call it.
void request_stop(int signal) noexcept;

/// Forgets the request. It is for tests that stop a rank within their process and continue.
void forget_stop() noexcept;

/// The signal of request_stop(), or 0. Any thread may call it.
[[nodiscard]] int stop_requested() noexcept;

/// Throws Stopped if a stop was requested and no StepsUnderWay exists. Long loops before or between steps (reading,
/// checking and hashing data, compiling, sampling) call it after at most a tenth of a second of work, at points where
/// nothing is half done.
void stop_point();

/// While such an object exists, stop_point() does nothing in this process. Ranks agree on stopping between steps; a
/// rank that stopped within a step by itself would make the others fail. Any thread may use it.
class StepsUnderWay {
 public:
  StepsUnderWay() noexcept;
  ~StepsUnderWay();
  StepsUnderWay(const StepsUnderWay&) = delete;
  StepsUnderWay& operator=(const StepsUnderWay&) = delete;
};

/// The state of this process's results, for the report at its end.
enum class Results : int { none, being_written, saved };

/// Sets what results() returns. Safe in a signal handler and on any thread.
void note_results(Results results) noexcept;
[[nodiscard]] Results results() noexcept;

/// The words about results for a run that was ended at once: "the results are not saved".
[[nodiscard]] const char* text_of(Results results) noexcept;

}  // namespace shardrun
