#include "core/partition/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/partition/copies.h"
#include "core/partition/lowering.h"

namespace shardrun::partition {
namespace {

using graph::ValueId;

Accumulate accumulate_of(graph::StateWrite::Mode mode) noexcept {
  switch (mode) {
    case graph::StateWrite::Mode::assign:
    case graph::StateWrite::Mode::first: return Accumulate::never;
    case graph::StateWrite::Mode::accumulate: return Accumulate::after_first;
    case graph::StateWrite::Mode::add: return Accumulate::always;
  }
  return Accumulate::never;
}

}  // namespace

Lowering::Lowering(const SplitFunction& function, const LowerSettings& settings)
    : graph_(settings.graph),
      settings_(settings),
      function_(function),
      mesh_(settings.partition.placements.mesh),
      device_(settings.rank.device),
      coordinates_(mesh::coordinates_of(mesh_, settings.rank.rank)),
      end_(settings.steps.next()),
      usage_(usage_of(settings.graph, function, settings.steps)),
      emitter_(settings, end_),
      program_(emitter_.program()),
      finalizer_(settings, coordinates_, emitter_, usage_.complete_at),
      buffer_of_(function.values.size()),
      costs_(function.nodes.size()) {
  program_.function = function.name;
  program_.role = function.role;
  program_.rows = function.rows;
  program_.call_rows = function.call_rows.empty() ? std::vector{function.rows} : function.call_rows;
  find_parts();
}

Program Lowering::run() {
  bind_states_and_inputs();
  std::optional<std::size_t> head;
  for (const StepId s : settings_.steps.ids()) {
    if (!head && function_.end.exists() && settings_.steps[s].nodes.front() >= function_.end) {
      head = program_.instructions.size();
    }
    emit_step(settings_.steps[s], s);
    copy_to_states(s);
    finalizer_.start(s);
  }
  if (!held_back_.empty()) {
    throw Error(ErrorCode::internal,
                fmt::format("function {}: {} does not start", function_.name, node(held_back_.begin()->second).name));
  }
  copy_to_states(end_);
  exchange_ties();
  finalizer_.start(end_);
  finalizer_.finish(end_);
  for (const graph::Port& port : function_.outputs) {
    program_.outputs.push_back({.name = port.name, .buffer = buffer_of_[port.value]});
  }
  program_.head = head.value_or(program_.instructions.size());
  return emitter_.finish();
}

void Lowering::emit_step(const Step& step, StepId s) {
  switch (step.kind) {
    case Step::Kind::compute:
      if (const graph::NodeId n = step.nodes.front(); node(n).transition) {
        emit_slice(n, s);
      } else {
        emit_op(n, s);
      }
      break;
    case Step::Kind::start: start_transfers(step, s); break;
    case Step::Kind::wait: finish_transfers(step, s); break;
  }
}

void Lowering::emit_op(graph::NodeId n, StepId s) {
  const SplitNode& made = node(n);
  Instruction instruction{.op = made.op,
                          .name = made.name,
                          .attributes = made.attributes,
                          .phase = made.phase,
                          .layer = made.layer,
                          .call = made.call,
                          .action = made.action};
  if (made.transition) {
    // The kernel computes only the elements that need no halo; the exchange brings the others.
    instruction.attributes.add("missing", "received");
  }
  instruction.inputs.reserve(made.inputs.size());
  for (const ValueId id : made.inputs) {
    instruction.inputs.push_back(buffer_of_[id]);
    emitter_.extend(buffer_of_[id], s);
  }
  std::vector<BufferId> taken;
  for (std::size_t o = 0; o < made.outputs.size(); ++o) {
    const ValueId id = made.outputs[o];
    instruction.outputs.push_back(bind_result(n, o, taken));
    if (o == 0 && usage_.fused[id] != nullptr) {
      instruction.accumulate = accumulate_of(usage_.fused[id]->mode);
    }
  }
  const Cost cost = cost_of(made, instruction.attributes);
  instruction.flops = cost.flops;
  instruction.scratch_bytes = cost.scratch_bytes;
  emitter_.append(std::move(instruction), s);
}

void Lowering::emit_slice(graph::NodeId n, StepId s) {
  const SplitNode& made = node(n);
  const ValueId from = made.inputs[0];
  const ValueId to = made.outputs[0];
  const BufferId source = buffer_of_[from];
  emitter_.extend(source, s);
  std::vector<BufferId> taken;
  const BufferId result = bind_result(n, 0, taken);
  emit_move(made, source, result, {gather_copy(type(from).shape, box(from), box(to), 0)}, s);
}

void Lowering::emit_move(const SplitNode& node, BufferId from, BufferId to, std::vector<Copy> copies, StepId s) {
  emitter_.append({.kind = Instruction::Kind::move,
                   .op = &op_of(node.transition->kind),
                   .name = node.name,
                   .inputs = {from},
                   .outputs = {to},
                   .phase = node.phase,
                   .layer = node.layer,
                   .copies = std::move(copies),
                   .call = node.call,
                   .action = node.action},
                  s);
}

/// The cost of a node. Nodes that are alike share it.
Lowering::Cost Lowering::cost_of(const SplitNode& node, const graph::Attributes& attributes) {
  std::optional<Cost>& cost = costs_[node.alike];
  cost = cost ? cost : reckon(node, attributes);
  return *cost;
}

Lowering::Cost Lowering::reckon(const graph::Node& node, const graph::Attributes& attributes) const {
  std::vector<graph::TensorType> inputs;
  std::vector<graph::TensorType> outputs;
  for (const ValueId id : node.inputs) {
    inputs.push_back(type(id));
  }
  for (const ValueId id : node.outputs) {
    outputs.push_back(type(id));
  }
  const graph::OpShape shape{attributes, inputs, outputs};
  const device::Kernel& kernel = device_.kernel(node.op->name);
  return {.flops = graph::flops(*node.op, shape),
          .scratch_bytes = device_.scratch_bytes(kernel, shape, settings_.rank.threads)};
}

/// Emits the copies for state writes that are made after step s, except those that an op makes itself.
void Lowering::copy_to_states(StepId s) {
  for (const graph::StateWrite* write : usage_.copies_after[s]) {
    check_source(*write);
    const BufferId source = buffer_of_[write->value];
    emitter_.extend(source, s);
    Instruction copy{.op = &graph::find_op("copy"),
                     .name = "write/" + graph_.states[write->state].name,
                     .inputs = {source},
                     .outputs = {buffer_of(write->state)},
                     .accumulate = accumulate_of(write->mode),
                     .action = s < end_ ? node(settings_.steps[s].nodes.front()).action : ActionId{}};
    copy.flops = write->mode == graph::StateWrite::Mode::assign ? 0 : graph::element_count(type(write->value));
    emitter_.append(std::move(copy), s);
  }
}

/// Throws Error{internal} if the write copies a state to another one, and the same call writes to the first.
void Lowering::check_source(const graph::StateWrite& write) const {
  const graph::StateId source = value(write.value).state;
  if (source.exists() && usage_.writes_to[source] > 0) {
    throw Error(ErrorCode::internal, fmt::format("function {}: state {} is copied and overwritten in one call",
                                                 function_.name, graph_.states[source].name));
  }
}

Program lower(const SplitFunction& function, const LowerSettings& settings) {
  return Lowering(function, settings).run();
}

}  // namespace shardrun::partition
