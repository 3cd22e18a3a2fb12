#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <optional>

#include "core/launch/inquest.h"
#include "core/launch/running_timer.h"

namespace shardrun::launch {

/// When a job whose ranks fail begins to end: as soon as nobody can say more of the cause, or when all have been heard
/// for as long as is allowed.
class Ending {
 public:
  using Clock = Inquest::Clock;

  /// `on_begin` is called once, by whoever makes it begin or on the thread of `io`.
  Ending(boost::asio::io_context& io, std::chrono::milliseconds hearing, std::function<void()> on_begin);

  /// After each word of a rank, and each end of one.
  void look(const Inquest& inquest);
  /// Whatever others might say.
  void begin();

  [[nodiscard]] bool has_begun() const { return has_begun_; }
  /// Since the first failure was known.
  [[nodiscard]] Clock::duration lasting() const { return since_ ? Clock::now() - *since_ : Clock::duration::zero(); }

 private:
  RunningTimer timer_;
  const std::chrono::milliseconds hearing_;
  const std::function<void()> on_begin_;
  std::optional<Clock::time_point> since_;
  bool has_begun_ = false;
};

}  // namespace shardrun::launch
