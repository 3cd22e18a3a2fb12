#pragma once

#include <string>
#include <vector>

#include "core/runtime/executor.h"

namespace shardrun::train {

/// The table of `shardrun run --profile`: calls, time and rate of each op that ran.
[[nodiscard]] std::string profile_table(const std::vector<runtime::OpTime>& times);

}  // namespace shardrun::train
