#include "core/train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace shardrun::train {

double learning_rate(const job::TrainSettings& train, std::int64_t step) {
  if (step < train.warmup) {
    return train.learning_rate * static_cast<double>(step + 1) / static_cast<double>(train.warmup + 1);
  }
  const std::int64_t span = std::max<std::int64_t>(1, train.steps - train.warmup);
  const double progress = std::min(1.0, static_cast<double>(step - train.warmup) / static_cast<double>(span));
  const double range = train.learning_rate - train.min_learning_rate;
  switch (train.schedule) {
    case job::Schedule::constant: return train.learning_rate;
    case job::Schedule::linear: return train.learning_rate - range * progress;
    case job::Schedule::cosine:
      return train.min_learning_rate + 0.5 * range * (1.0 + std::cos(std::numbers::pi * progress));
  }
  return train.learning_rate;
}

}  // namespace shardrun::train
