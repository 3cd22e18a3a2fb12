#pragma once

#include <cstdint>

#include "core/job/job.h"

namespace shardrun::train {

/// The learning rate of a step, counted from 0. A linear warm-up over `warmup` steps is followed by constant, linear or
/// cosine decay (Loshchilov & Hutter 2017, arXiv:1608.03983, one period). The step after the last would
/// have the minimum.
[[nodiscard]] double learning_rate(const job::TrainSettings& train, std::int64_t step);

}  // namespace shardrun::train
