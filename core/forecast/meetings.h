#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/partition/program.h"

namespace shardrun::forecast {

/// One rank's part of a step: the programs that it executes, by number, in order.
struct RankStep {
  const partition::Programs* programs = nullptr;
  std::vector<std::size_t> executed;
};

struct ExecutedInstruction {
  const partition::Program* program = nullptr;
  const partition::Instruction* instruction = nullptr;

  /// REQUIRES: it starts a transfer or waits for one.
  [[nodiscard]] const partition::Transfer& transfer() const { return program->transfers[instruction->transfer]; }
};

/// The instructions in order of execution. An instruction's number in the step is its index here. REQUIRES:
/// `step.programs` outlives the result.
[[nodiscard]] std::vector<ExecutedInstruction> instructions_of(const RankStep& step);

/// One execution of a transfer, on all given ranks that take part in it.
struct Meeting {
  struct Side {
    std::size_t rank = 0;   ///< index among the given ranks
    std::size_t start = 0;  ///< the instruction's number in its step
  };
  std::vector<Side> sides;  ///< of a message: the sender, then the receiver
};

struct Meetings {
  std::vector<Meeting> all;
  std::vector<std::vector<std::size_t>> at;  ///< per rank, and per start and wait in its step: the index of its meeting
};

/// Matches the transfers of several ranks. `ranks`: one of each stage of the pipeline along `pipeline_axis`, in order;
/// or, with −1, a single one. Transfers along a link, or in one group, match in the order in which each rank starts
/// them. Throws Error{internal} if some ranks start more than others.
[[nodiscard]] Meetings meetings_of(const std::vector<std::vector<ExecutedInstruction>>& ranks,
                                   mesh::AxisId pipeline_axis);

}  // namespace shardrun::forecast
