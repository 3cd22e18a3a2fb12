#pragma once

#include <cstdint>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/schedule.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// The steps with which something begins and ends.
struct Span {
  std::int32_t begin = -1;
  std::int32_t end = -1;
};

/// When the values of a function are made and read, in its steps, and when its states are written: the same on all
/// ranks. The function's end is the step behind the last.
struct Usage {
  std::vector<Span> spans;                                          ///< of each node
  std::vector<std::int32_t> last_use;                               ///< of each value; −1: it is not read
  std::vector<const graph::StateWrite*> fused;                      ///< of each value the write that its op makes
  std::vector<std::int32_t> copied_at;                              ///< after which a value is last copied, or −1
  std::vector<std::vector<const graph::StateWrite*>> copies_after;  ///< of each step
  std::vector<std::int32_t> complete_at;                            ///< after which a state is written no more, or −1
  std::vector<int> writes_to;                                       ///< of each state
};

/// A sum is added to its state as soon as its value is there, earlier writes to the state are made and nothing reads
/// the old contents any more; an assignment is made at the end, if its op cannot make it.
/// REQUIRES: `function` outlives the result.
[[nodiscard]] Usage usage_of(const graph::Graph& graph, const SplitFunction& function, const std::vector<Step>& steps);

}  // namespace shardrun::partition
