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

/// The speed of a rank, in FLOPs and in bytes of memory per second.
struct ComputeRate {
  double flops = 0;
  double memory_bandwidth = 0;
};

/// Whether an instruction does more than start a transfer or wait for one.
[[nodiscard]] bool computes(const partition::Instruction& instruction) noexcept;

/// Seconds of an instruction that computes or copies: for its FLOPs or for its operands' bytes, whichever is longer
/// (the roofline: Williams, Waterman & Patterson 2009, doi:10.1145/1498765.1498785).
[[nodiscard]] double compute_seconds(const ExecutedInstruction& at, const ComputeRate& rate);

/// Seconds of a transfer by a ring algorithm: the latencies of its messages plus the time of the bytes that the rank
/// sends (Thakur, Rabenseifner & Gropp 2005, doi:10.1177/1094342005051521). Messages among n ranks: 2(n−1) for
/// all_reduce, n−1 for all_gather and reduce_scatter, one per other member with data for all_to_all.
[[nodiscard]] double transfer_seconds(const partition::Transfer& transfer, const partition::Programs& programs,
                                      const compile::AxisRate& rate);

/// The seconds of every instruction of a step, and the rates of the mesh axes.
struct StepCosts {
  /// Seconds per rank and instruction, by its number in the step. For a wait on an axis without a rate: the seconds
  /// from the later of the wait's begin and the last participant's start, to the end of the wait.
  std::vector<std::vector<double>> seconds;
  compile::AxisRates axes;
};

/// How a stage spends a step, in seconds. `compute`, `exposed` and `waiting` add up to the step.
struct StagePrediction {
  double compute = 0;
  double exposed = 0;  ///< the stage only waits while its transfer moves data
  double waiting = 0;  ///< the stage waits until other stages start their transfers, or end the step
  double hidden = 0;   ///< the part of `compute` during which a transfer over an axis with a rate moves data
};

struct Prediction {
  double seconds = 0;
  std::vector<StagePrediction> stages;
  /// Seconds of a pipeline's action, by chunk, kind and microbatch: computing, and waits along other mesh axes.
  std::map<std::tuple<std::uint32_t, plan::Action::Kind, std::uint32_t>, double> actions;

  [[nodiscard]] double cost_of(const plan::Action& action) const;
};

/// Simulates a step on one rank of each stage at once, or on a single rank. Transfers are modelled so:
/// - A message over host memory moves as soon as its sender has started it. Other transfers, including messages in
///   device memory, move as soon as all participants have started them.
/// - Along one mesh axis, a rank sends its transfers one after the other. Different axes do not slow each other down.
/// - Receiving does not delay sending, and a sender does not wait for its receiver.
[[nodiscard]] Prediction predict(const std::vector<RankStep>& ranks, const partition::Pipeline& pipeline,
                                 const StepCosts& costs);

}  // namespace shardrun::forecast
