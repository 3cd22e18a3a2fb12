#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "core/compile/cluster.h"
#include "core/forecast/meetings.h"
#include "core/partition/pipeline.h"

namespace shardrun::forecast {

/// The speed of a rank, per second.
struct ComputeRate {
  double flops = 0;
  double memory_bandwidth = 0;  ///< bytes
};

/// Whether it does more than start or end a transfer.
[[nodiscard]] bool computes(const partition::Instruction& instruction) noexcept;

/// Seconds of computing or moving: the time of its FLOPs or of its operands' bytes, whichever is longer (the roofline:
/// Williams, Waterman & Patterson 2009, doi:10.1145/1498765.1498785).
[[nodiscard]] double compute_seconds(const ExecutedInstruction& at, const ComputeRate& rate);

/// Seconds of a transfer by a ring algorithm: the latency of its messages, one after the other, and the time of the
/// bytes that the rank sends (Thakur, Rabenseifner & Gropp 2005, doi:10.1177/1094342005051521). Messages: all_reduce
/// 2(n−1), all_gather and reduce_scatter n−1, all_to_all one per member that gets or gives something.
[[nodiscard]] double transfer_seconds(const partition::Transfer& transfer, const partition::Programs& programs,
                                      const compile::AxisRate& rate);

/// The costs of a step's instructions.
struct StepCosts {
  /// Per rank and instruction, by number in the step. For a wait on an axis without a rate: the seconds after every
  /// participant has started and the wait has begun.
  std::vector<std::vector<double>> seconds;
  compile::AxisRates axes;
};

/// How a stage spends a step, in seconds. `compute`, `exposed` and `waiting` add up to the step.
struct StagePrediction {
  double compute = 0;
  double exposed = 0;  ///< its transfers are under way and it does nothing
  double waiting = 0;  ///< other stages have not yet started theirs, or not yet ended the step
  double hidden = 0;   ///< the part of computing during which a transfer over an axis with a rate is under way
};

struct Prediction {
  double seconds = 0;
  std::vector<StagePrediction> stages;
  /// Cost of a pipeline's action, by chunk, kind and microbatch: computing, and waits along other axes.
  std::map<std::tuple<std::uint32_t, plan::Action::Kind, std::uint32_t>, double> actions;

  [[nodiscard]] double cost_of(const plan::Action& action) const;
};

/// Simulates the instructions of one rank of each stage, or of a single rank, at once.
/// - A message over host memory is under way from its send; another transfer, such as a message in the device's memory,
///   from when all participants have started it.
/// - A rank sends one transfer after the other over an axis, whoever receives it. Different axes are independent.
/// - Receiving does not delay sending, and a sender does not wait for its receiver.
[[nodiscard]] Prediction predict(const std::vector<RankStep>& ranks, const partition::Pipeline& pipeline,
                                 const StepCosts& costs);

}  // namespace shardrun::forecast
