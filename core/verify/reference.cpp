#include "core/verify/reference.h"

#include <utility>

#include "core/checkpoint/saved_state.h"
#include "core/device/host_tensor.h"
#include "core/partition/partition.h"

namespace shardrun::verify {

Reference::Reference(const Workload& workload, int threads, std::function<bool()> stops, Meter* meter)
    : Reference(workload, partition::programs_of(workload.graph, device::Device::find("reference"), threads),
                std::move(stops), meter) {}

Reference::Reference(const Workload& workload, const partition::Programs& programs, std::function<bool()> stops,
                     Meter* meter)
    : workload_(workload), instruction_work_(programs, meter), executor_(programs, device::Device::find("reference")) {
  for (const partition::Program& program : programs.programs) {
    program_work_.push_back(verify::work_of(program));
  }
  executor_.end_where([this, stops = std::move(stops)] {
    instruction_work_.step();
    return stops && stops();
  });
}

void Reference::initialize() {
  if (workload_.job != nullptr) {
    checkpoint::initialize_states(*workload_.job, workload_.graph, executor_);
  } else {
    runtime::initialize(workload_.graph, workload_.seed, executor_);
  }
}

std::span<double> Reference::state(graph::StateId id) { return device::elements_of<double>(executor_.state(id)); }

void Reference::run(const Call& call) {
  const std::size_t program = program_of(call);
  instruction_work_.follow({program});
  feed(workload_, call, executor_, program);
  executor_.run(program, call.scalars);
}

std::int64_t Reference::work_of(const std::vector<Call>& calls) const {
  std::int64_t work = 0;
  for (const Call& call : calls) {
    work += program_work_[program_of(call)];
  }
  return work;
}

std::int64_t Reference::work(std::int64_t steps) const {
  return steps * (work_of(gradient_calls(workload_, 0)) + work_of({update_call(workload_, 0)})) +
         work_of(evaluation_calls(workload_));
}

void Reference::differentiate(std::int64_t step) {
  for (const Call& call : gradient_calls(workload_, step)) {
    run(call);
  }
}

void Reference::update(std::int64_t step) { run(update_call(workload_, step)); }

void Reference::evaluate() {
  for (const Call& call : evaluation_calls(workload_)) {
    run(call);
  }
}

}  // namespace shardrun::verify
