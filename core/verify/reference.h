#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/runtime/executor.h"
#include "core/verify/meter.h"
#include "core/verify/workload.h"

namespace shardrun::verify {

/// A workload on one rank, in float64.
class Reference {
 public:
  /// `stops`: asked before every op; true ends what is computed with Error{aborted}. `meter`: counts what is computed;
  /// may be null. REQUIRES: what `workload` points to and `meter` outlive this.
  Reference(const Workload& workload, int threads, std::function<bool()> stops = {}, Meter* meter = nullptr);
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  /// Every state's first values.
  void initialize();
  /// A whole state, to read or to overwrite.
  [[nodiscard]] std::span<double> state(graph::StateId id);

  /// What a meter counts for so many steps, and for an evaluation where there is one.
  [[nodiscard]] std::int64_t work(std::int64_t steps) const;

  /// Loss and gradients of a step's batch.
  void differentiate(std::int64_t step);
  /// The step's update from the gradients that are there, or the iteration.
  void update(std::int64_t step);
  /// The loss over the validation part.
  void evaluate();

 private:
  void run(const Call& call);

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
};

}  // namespace shardrun::verify
