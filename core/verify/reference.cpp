#include "core/verify/reference.h"

#include <utility>

#include "core/partition/partition.h"

namespace shardrun::verify {

Reference::Reference(const Workload& workload, int threads, std::function<bool()> stops)
    : workload_(workload),
      executor_(partition::programs_of(workload.graph, device::Device::find("reference"), threads),
                device::Device::find("reference")) {
  executor_.end_where(std::move(stops));
}

void Reference::initialize() { runtime::initialize(workload_.graph, workload_.seed, executor_); }

std::span<double> Reference::state(graph::StateId id) {
  const device::TensorView view = executor_.state(id);
  return {static_cast<double*>(view.data), static_cast<std::size_t>(view.elements())};
}

void Reference::run(const Call& call) {
  const std::size_t program = executor_.find(call.function, call.rows, call.last);
  feed(workload_, call, executor_, program);
  executor_.run(program, call.scalars);
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
