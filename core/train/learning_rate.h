#pragma once

#include <cstdint>

#include "core/job/job.h"

namespace shardrun::train {

/// The learning rate of a step, from 0: a linear warm-up over `warmup` steps, then constant, linear, or cosine
/// (Loshchilov & Hutter 2017, arXiv:1608.03983, one period) down to the smallest, which the step after the last
/// would have.
[[nodiscard]] double learning_rate(const job::TrainSettings& train, std::int64_t step);

}  // namespace shardrun::train
