#pragma once

#include <cstdint>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/schedule.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// The first and the last step of something.
struct Span {
  std::int32_t begin = -1;
  std::int32_t end = -1;
};

/// The steps of a function in which values are made and read and states are written; the same on all ranks of a stage.
/// The number of steps stands for the function's end.
struct Usage {
  std::vector<Span> spans;                      ///< per node
  std::vector<std::int32_t> last_use;           ///< per value; −1: it is not read
  std::vector<const graph::StateWrite*> fused;  ///< per value: the state write that its op makes itself, or null
  std::vector<std::int32_t> copied_at;          ///< per value: the step of the last copy of it to a state; −1: none
  std::vector<std::vector<const graph::StateWrite*>> copies_after;  ///< per step: the copies to states made after it
  std::vector<std::int32_t> complete_at;  ///< per state: the step of the last write to it; −1: none
  std::vector<int> writes_to;             ///< per state: the number of writes to it
};

/// Decides when state writes are made.
///  - A sum is added as soon as its value is made, earlier writes to the state are made, and nothing reads the old
///    contents any more.
///  - An assignment is made by its op if possible, otherwise at the function's end.
/// REQUIRES: `function` outlives the result.
[[nodiscard]] Usage usage_of(const graph::Graph& graph, const SplitFunction& function, const std::vector<Step>& steps);

}  // namespace shardrun::partition
