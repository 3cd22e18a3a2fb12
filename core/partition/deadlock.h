#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// A value of one call that a stage sends or receives.
struct StageMessage {
  Link link;
  bool sends = false;
  std::int32_t call = 0;
  graph::ValueId value = graph::no_value;
  std::size_t segment = 0;  ///< of what the stage does
};

/// How a message is called where it is waited for.
struct MessageName {
  std::string action;
  std::string node;
};

/// Goes through all stages' messages at once. What is sent is on its way until the receiver's list has come to it, and
/// a stage that would send more at a time along a link than it may waits. Returns the least number with which all lists
/// come to their ends. Throws Error{job} where there is none, naming what each stage waits for.
[[nodiscard]] std::size_t least_under_way(const std::vector<std::vector<StageMessage>>& stages,
                                          const std::function<MessageName(const StageMessage& message)>& name);

}  // namespace shardrun::partition
