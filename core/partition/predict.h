#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "core/partition/meetings.h"
#include "core/partition/pipeline.h"

namespace shardrun::partition {

/// What a rank does in a second.
struct ComputeRate {
  double flops = 0;
  double memory_bandwidth = 0;  ///< bytes
};

/// What a rank sends over a mesh axis.
struct AxisRate {
  double bandwidth = 0;  ///< bytes a second
  double latency = 0;    ///< seconds a message
};

/// Whether it is more than the start or the end of a transfer.
[[nodiscard]] bool computes(const Instruction& instruction) noexcept;

/// Seconds of computing or moving: as long as its FLOPs or its operands' bytes take, whichever is longer (the roofline:
/// Williams, Waterman & Patterson 2009, doi:10.1145/1498765.1498785).
[[nodiscard]] double compute_seconds(const ExecutedInstruction& at, const ComputeRate& rate);

/// Seconds of a transfer in a ring: its messages, one after the other, and the bytes that the rank sends (Thakur,
/// Rabenseifner & Gropp 2005, doi:10.1177/1094342005051521). Messages: all_reduce 2(n−1), all_gather and reduce_scatter
/// n−1, all_to_all one for each member that gets or gives something.
[[nodiscard]] double transfer_seconds(const Transfer& transfer, const Programs& programs, std::size_t f32_bytes,
                                      const AxisRate& rate);

/// What the instructions of a step cost.
struct StepCosts {
  /// Of each rank and each of its instructions, by number in the step. What waits for a transfer over an axis without a
  /// rate: how long after everyone has started and it began to wait.
  std::vector<std::vector<double>> seconds;
  std::vector<std::optional<AxisRate>> axes;  ///< of each mesh axis
  std::size_t f32_bytes = 4;
};

/// How a stage spends a step; the first three fill it.
struct StagePrediction {
  double compute = 0;
  double exposed = 0;  ///< seconds in which it does nothing while its transfers are under way
  double waiting = 0;  ///< and while others have yet to start theirs, or to end the step
  double hidden = 0;   ///< of computing, while one or more of its transfers over axes with a rate are under way
};

struct Prediction {
  double seconds = 0;
  std::vector<StagePrediction> stages;
  /// Of a pipeline's action, by chunk, kind and microbatch: computing, and what it waits for along other axes.
  std::map<std::tuple<std::uint32_t, plan::Action::Kind, std::uint32_t>, double> actions;

  [[nodiscard]] double cost_of(const plan::Action& action) const;
};

/// Goes through the instructions of one rank of each stage, or of one alone, at once. A message is under way from when
/// it is sent, another transfer from when all have started it; over each axis a rank sends one after the other, to
/// whomever it is, and over different axes at a time. What it receives does not keep it from sending. A sender does not
/// wait for its receiver.
[[nodiscard]] Prediction predict(const std::vector<RankStep>& ranks, const Pipeline& pipeline, const StepCosts& costs);

}  // namespace shardrun::partition
