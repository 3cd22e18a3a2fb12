#pragma once

#include <string>
#include <vector>

#include "core/partition/sharded.h"

namespace shardrun::partition {

/// What one stage does, with the action that each node belongs to.
struct StageFunction {
  ShardedFunction function;
  std::vector<std::string> actions;  ///< of each node
};

/// Goes through all stages' lists at once. What is sent is on its way until the receiver's list has come to it, and a
/// stage that would send more at a time along a link than it may waits. Returns the least number with which all lists
/// come to their ends. Throws Error{job} where there is none, naming what each stage waits for.
[[nodiscard]] std::size_t least_under_way(const std::vector<StageFunction>& stages);

}  // namespace shardrun::partition
