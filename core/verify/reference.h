#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "core/runtime/executor.h"
#include "core/verify/meter.h"
#include "core/verify/workload.h"

namespace shardrun::verify {

/// Computes a workload on one rank in float64.
class Reference {
 public:
  /// `stops`: called before every op; if it returns true, the computation ends with Error{aborted}. `meter`: counts the
  /// work; may be null. REQUIRES: `meter` and the objects to which `workload` points outlive this object.
  Reference(const Workload& workload, int threads, std::function<bool()> stops = {}, Meter* meter = nullptr);
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  /// Sets the initial values of every state.
  void initialize();
  [[nodiscard]] std::vector<double> state(graph::StateId id) const;
  void set_state(graph::StateId id, std::span<const double> values);

  /// Whether results are rounded from now on, as a run can round them. Each computation rounds in a different way.
  void round(bool rounds) { rounds_ = rounds; }

  /// The work that the meter counts for `steps` steps and for the evaluation, if there is one.
  [[nodiscard]] std::int64_t work(std::int64_t steps) const;

  /// Computes the loss and the gradients of a step's batch.
  void differentiate(std::int64_t step);
  /// Updates the parameters from the present gradients, does a step of an iteration, or applies the model.
  void update(std::int64_t step);
  /// Computes the loss of the validation data.
  void evaluate();

 private:
  void run(const Call& call);
  void load_parameters(const checkpoint::SafetensorsFile& file);

  /// REQUIRES: `programs` are those of the workload's graph on one rank.
  Reference(const Workload& workload, const partition::Programs& programs, std::function<bool()> stops, Meter* meter);

  [[nodiscard]] std::size_t program_of(const Call& call) const {
    return executor_.find(call.function, call.rows, call.last);
  }
  [[nodiscard]] std::int64_t work_of(const std::vector<Call>& calls) const;

  const Workload workload_;
  std::vector<std::int64_t> program_work_;
  InstructionWork instruction_work_;
  runtime::Executor executor_;
  std::map<const void*, graph::StateId> lasting_;  ///< written states that last between steps, by their address
  std::set<const void*> caches_;                   ///< addresses of caches
  bool rounds_ = false;
  std::uint32_t rounded_ = 0;  ///< the number of tensors rounded so far; selects the random numbers
  const device::RoundResults round_results_;
};

}  // namespace shardrun::verify
