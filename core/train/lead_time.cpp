#include "core/train/lead_time.h"

#include <algorithm>
#include <utility>

namespace shardrun::train {

void LeadTime::step_took(double seconds) noexcept { longest_step_ = std::max(longest_step_, seconds); }

double LeadTime::look(Time now, double save, bool saves_now, int steps_to_come) noexcept {
  constexpr double caution = 1.5;
  const std::chrono::duration<double> away = now - std::exchange(last_look_, now);
  longest_away_ = std::max(longest_away_, away.count());
  return caution * (save + longest_away_ + steps_to_come * longest_step_) + (saves_now ? save : 0) + 1;
}

}  // namespace shardrun::train
