#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/partition/program.h"

namespace shardrun::forecast {

/// One rank's part of a step: the programs that it executes, by number, one after the other.
struct RankStep {
  const partition::Programs* programs = nullptr;
  std::vector<std::size_t> executed;
};

struct ExecutedInstruction {
  const partition::Program* program = nullptr;
  const partition::Instruction* instruction = nullptr;

  /// REQUIRES: it starts a transfer or waits for one.
  [[nodiscard]] const partition::Transfer& transfer() const {
    return program->transfers[static_cast<std::size_t>(instruction->transfer)];
  }
};

/// In the order in which they are executed: elsewhere an instruction's number in the step is its place here.
/// REQUIRES: `step.programs` outlives the result.
[[nodiscard]] std::vector<ExecutedInstruction> instructions_of(const RankStep& step);

/// One execution of a transfer, with those of some ranks that have part in it.
struct Meeting {
  struct Side {
    std::size_t rank = 0;   ///< by its place among them
    std::size_t start = 0;  ///< the instruction's number in its step
  };
  std::vector<Side> sides;  ///< of a message the sender, then the receiver
};

struct Meetings {
  std::vector<Meeting> all;
  std::vector<std::vector<std::size_t>> at;  ///< of each rank, and each start and wait in its step: which of them
};

/// `ranks`: one of each stage of the pipeline along `pipeline_axis`, in their order; or, with −1, one alone. What goes
/// along a link, and what is done together along an axis, meets in the order in which each rank starts it.
/// Throws Error{internal} where some start more than others.
[[nodiscard]] Meetings meetings_of(const std::vector<std::vector<ExecutedInstruction>>& ranks,
                                   mesh::AxisId pipeline_axis);

}  // namespace shardrun::forecast
