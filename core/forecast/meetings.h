#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/partition/program.h"

namespace shardrun::forecast {

/// The programs that one rank executes in a step, in order, by their numbers.
struct RankStep {
  const partition::Programs* programs = nullptr;
  std::vector<std::size_t> executed;
};

struct ExecutedInstruction {
  const partition::Program* program = nullptr;
  const partition::Instruction* instruction = nullptr;

  /// The transfer that the instruction starts or waits for. REQUIRES: it does one of these.
  [[nodiscard]] const partition::Transfer& transfer() const { return program->transfers[instruction->transfer]; }
};

/// The instructions in order of execution. An instruction's number in the step is its index here. REQUIRES:
/// `step.programs` outlives the result.
[[nodiscard]] std::vector<ExecutedInstruction> instructions_of(const RankStep& step);

/// One execution of a transfer, on all given ranks that take part in it.
struct Meeting {
  struct Side {
    std::size_t rank = 0;   ///< index in the list of ranks
    std::size_t start = 0;  ///< the instruction that starts the transfer, as a number in the rank's step
  };
  std::vector<Side> sides;  ///< for a message: the sender, then the receiver
};

struct Meetings {
  std::vector<Meeting> all;
  std::vector<std::vector<std::size_t>> at;  ///< per rank: the index in `all` of each start and wait
};

/// Matches the transfers of several ranks. `ranks`: the instructions of one rank per stage of the pipeline along
/// `pipeline_axis`, in order; without a pipeline (the default id) those of a single rank. The k-th starts of ranks
/// along a link, or in a group, match. Throws Error{internal} if some ranks start more transfers than others.
[[nodiscard]] Meetings meetings_of(const std::vector<std::vector<ExecutedInstruction>>& ranks,
                                   mesh::AxisId pipeline_axis);

}  // namespace shardrun::forecast
