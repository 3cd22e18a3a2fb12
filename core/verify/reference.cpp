#include "core/verify/reference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/checkpoint/saved_state.h"
#include "core/device/elements.h"
#include "core/device/host_tensor.h"
#include "core/partition/partition.h"
#include "core/verify/rounding.h"
#include "core/verify/snapshot.h"

namespace shardrun::verify {
namespace {

/// Whether all operands are float32. Results in fewer bits are then casts, so that ranks round no partial sums of them.
bool is_narrowed(const device::KernelCall& call) {
  return std::ranges::all_of(call.inputs, [](const device::TensorView& operand) {
    return graph::is_real(operand.dtype) && operand.rounded == graph::DType::f32;
  });
}

}  // namespace

Reference::Reference(const Workload& workload, int threads, std::function<bool()> stops, Meter* meter)
    : Reference(workload, partition::programs_of(workload.graph, device::Device::find("reference"), threads),
                std::move(stops), meter) {}

Reference::Reference(const Workload& workload, const partition::Programs& programs, std::function<bool()> stops,
                     Meter* meter)
    : workload_(workload),
      instruction_work_(programs, meter),
      executor_(programs, device::Device::find("reference")),
      round_results_([this](const device::KernelCall& call) {
        for (const device::TensorView& result : call.outputs) {
          if (!graph::is_real(result.dtype) || lasting_.contains(result.data)) {
            continue;
          }
          const auto round = caches_.contains(result.data) || is_narrowed(call) ? round_stored : round_result;
          round(result.rounded, device::elements_of<double>(result), ++rounded_, call.threads);
        }
      }) {
  for (const graph::StateId id : written_states(workload_.graph)) {
    const graph::StateKind kind = workload_.graph.states[id].kind;
    if (belongs_to(kind, Moment::begin)) {
      lasting_.emplace(executor_.state(id).data, id);
    } else if (kind == graph::StateKind::cache) {
      caches_.insert(executor_.state(id).data);
    }
  }
  for (const partition::Program& program : programs.programs) {
    program_work_.push_back(verify::work_of(program));
  }
  executor_.end_where([this, stops = std::move(stops)] {
    instruction_work_.step();
    return stops && stops();
  });
}

void Reference::initialize() {
  if (workload_.job == nullptr) {
    return runtime::initialize(workload_.graph, workload_.seed, executor_);
  }
  checkpoint::initialize_states(*workload_.job, workload_.graph, executor_);
  if (workload_.weights != nullptr) {
    return checkpoint::load_parameters(workload_.weights->source(), workload_.graph, executor_);
  }
  if (!workload_.job->checkpoint.empty()) {
    load_parameters(checkpoint::SafetensorsFile(workload_.job->checkpoint));
  }
}

/// Loads the engine's initial parameters. The engine has already checked that all are of type F32.
void Reference::load_parameters(const checkpoint::SafetensorsFile& file) {
  for (const graph::StateId id : workload_.graph.states.ids()) {
    const graph::State& parameter = workload_.graph.states[id];
    if (parameter.kind != graph::StateKind::parameter) {
      continue;
    }
    const checkpoint::Tensor* const tensor = file.find(parameter.name);
    if (tensor == nullptr || tensor->info.shape != parameter.type.shape) {
      throw Error(ErrorCode::job,
                  fmt::format("'{}' has no tensor '{}' [{}], so the reference cannot begin with it",
                              file.path().string(), parameter.name, fmt::join(parameter.type.shape, ", ")));
    }
    std::vector<float> values(tensor->bytes.size() / sizeof(float));
    file.read(*tensor, 0, std::as_writable_bytes(std::span(values)));
    set_state(id, std::vector<double>(values.begin(), values.end()));
  }
}

std::vector<double> Reference::state(graph::StateId id) const {
  const device::HostTensor tensor(executor_.queue(), executor_.state(id), device::Access::read);
  std::vector<double> values(static_cast<std::size_t>(tensor.view().elements()));
  device::read_elements(tensor.view(), 0, values);
  return values;
}

void Reference::set_state(graph::StateId id, std::span<const double> values) {
  device::HostTensor tensor(executor_.queue(), executor_.state(id), device::Access::write);
  device::write_elements(tensor.view().dtype, values, tensor.bytes());
  tensor.store();
}

void Reference::run(const Call& call) {
  const std::size_t program = program_of(call);
  instruction_work_.follow({program});
  feed(workload_, call, executor_, program);
  device::Scalars scalars = call.scalars;
  scalars.round = rounds_ ? &round_results_ : nullptr;
  executor_.run(program, scalars);
}

std::int64_t Reference::work_of(const std::vector<Call>& calls) const {
  std::int64_t work = 0;
  for (const Call& call : calls) {
    work += program_work_[program_of(call)];
  }
  return work;
}

std::int64_t Reference::work(std::int64_t steps) const {
  std::int64_t work = steps * work_of(gradient_calls(workload_, 0)) + work_of(evaluation_calls(workload_));
  for (std::int64_t step = 0; step < steps; ++step) {
    work += work_of({update_call(workload_, step)});
  }
  return work;
}

void Reference::differentiate(std::int64_t step) {
  for (const Call& call : gradient_calls(workload_, step)) {
    run(call);
  }
}

void Reference::update(std::int64_t step) {
  std::vector<std::vector<double>> before;
  for (const auto& [address, id] : lasting_) {
    before.push_back(state(id));
  }
  run(update_call(workload_, step));
  for (auto of_state = before.begin(); const auto& [address, id] : lasting_) {
    if (rounds_) {
      std::vector<double> after = state(id);
      round_change(workload_.graph.states[id].type.dtype, *of_state++, after, ++rounded_);
      set_state(id, after);
    }
  }
}

void Reference::evaluate() {
  for (const Call& call : evaluation_calls(workload_)) {
    run(call);
  }
}

}  // namespace shardrun::verify
