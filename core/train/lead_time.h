#pragma once

#include <chrono>

namespace shardrun::train {

/// How long before [job] time_limit a run must end, learned from the time between earlier calls.
class LeadTime {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// The first step begins. Earlier time, such as waiting for ranks that load their data, says nothing about steps.
  void begin(Time now) noexcept { last_look_ = now; }
  /// A step has ended whose result is read only after later steps began. `seconds`: its duration.
  void step_took(double seconds) noexcept;
  /// The time to reserve, in seconds: for a save, for the time until the next call, and for `steps_to_come` steps; with
  /// `saves_now`, also for the save that is being written. REQUIRES: begin() was called.
  [[nodiscard]] double look(Time now, double save, bool saves_now, int steps_to_come) noexcept;

 private:
  Time last_look_;
  double longest_away_ = 0;  ///< longest time between two calls of look()
  double longest_step_ = 0;
};

}  // namespace shardrun::train
