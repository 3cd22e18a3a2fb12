#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "core/runtime/executor.h"
#include "core/verify/meter.h"
#include "core/verify/workload.h"

namespace shardrun::verify {

/// A workload on one rank, in float64.
class Reference {
 public:
  /// `stops`: called before every op; true ends the computation with Error{aborted}. `meter`: counts the work; may be
  /// null. REQUIRES: the objects that `workload` points to and `meter` outlive this.
  Reference(const Workload& workload, int threads, std::function<bool()> stops = {}, Meter* meter = nullptr);
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  /// Gives every state its first values.
  void initialize();
  /// A whole state, to read or overwrite.
  [[nodiscard]] std::span<double> state(graph::StateId id);

  /// Whether results are rounded from now on as the run may round them, each time in another way.
  void round(bool rounds) { rounds_ = rounds; }

  /// The work that a meter counts for so many steps, and for an evaluation if there is one.
  [[nodiscard]] std::int64_t work(std::int64_t steps) const;

  /// Computes loss and gradients of a step's batch.
  void differentiate(std::int64_t step);
  /// Does the step's update from the present gradients, or the iteration.
  void update(std::int64_t step);
  /// Computes the loss over the validation part.
  void evaluate();

 private:
  void run(const Call& call);
  void load_parameters(const checkpoint::SafetensorsFile& file);

  /// REQUIRES: `programs` are of the workload's graph, on one rank.
  Reference(const Workload& workload, const partition::Programs& programs, std::function<bool()> stops, Meter* meter);

  [[nodiscard]] std::size_t program_of(const Call& call) const {
    return executor_.find(call.function, call.rows, call.last);
  }
  [[nodiscard]] std::int64_t work_of(const std::vector<Call>& calls) const;

  const Workload workload_;
  std::vector<std::int64_t> program_work_;
  InstructionWork instruction_work_;
  runtime::Executor executor_;
  std::map<const void*, graph::StateId> lasting_;  ///< states that last, by their addresses
  bool rounds_ = false;
  std::uint32_t rounded_ = 0;  ///< tensors so far
  const device::RoundResults round_results_;
};

}  // namespace shardrun::verify
