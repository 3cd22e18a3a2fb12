#include "core/launch/running_timer.h"

#include <algorithm>
#include <utility>

#include "core/launch/status.h"

namespace shardrun::launch {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::nanoseconds look = std::chrono::milliseconds(50);

}  // namespace

void RunningTimer::start(std::chrono::nanoseconds after, std::function<void()> call) {
  left_ = after;
  call_ = std::move(call);
  wait();
}

void RunningTimer::cancel() {
  call_ = nullptr;
  timer_.cancel();
}

void RunningTimer::wait() {
  timer_.expires_after(std::clamp(left_, std::chrono::nanoseconds::zero(), look));
  timer_.async_wait(
      [this, began = Clock::now(), lives = std::weak_ptr(lives_)](const boost::system::error_code& cancelled) {
        if (cancelled || lives.expired() || !call_) {
          return;
        }
        const Clock::duration passed = Clock::now() - began;
        left_ -= passed - time_held_up(passed, look);
        if (left_ > std::chrono::nanoseconds::zero()) {
          return wait();
        }
        std::exchange(call_, nullptr)();
      });
}

}  // namespace shardrun::launch
