#include <algorithm>
#include <numeric>
#include <utility>

#include "core/partition/lowering.h"
#include "core/partition/parts.h"

namespace shardrun::partition {

using graph::ValueId;

void Lowering::find_parts() {
  parts_.resize(function_.values.size());
  for (const ValueId v : function_.values.ids()) {
    const SplitValue& value = function_.values[v];
    if (value.alike == v) {
      mesh::Box box = mesh::box_of(value.type.shape, value.placement, mesh_, coordinates_);
      graph::TensorType type = part_type(value.type, box);
      type.dtype = device_.stored(type.dtype);
      const std::uint64_t bytes =
          static_cast<std::uint64_t>(graph::element_count(type)) * graph::element_bytes(type.dtype);
      parts_[v] = {.box = std::move(box), .type = std::move(type), .bytes = bytes};
    }
  }
}

void Lowering::bind_states_and_inputs() {
  for (const ValueId v : function_.values.ids()) {
    const graph::StateId state = function_.values[v].state;
    if (state.exists()) {
      const bool whole = box(v) == settings_.states[state].box;
      buffer_of_[v] = whole ? buffer_of(state) : add_view(v);
    }
  }
  for (const SplitInput& port : function_.inputs) {
    const BufferId buffer = add_buffer(port.name, port.value, StepId(0));
    buffer_of_[port.value] = buffer;
    program_.buffers[buffer].last = std::max(StepId(0), usage_.last_use[port.value]).number();
    program_.inputs.push_back({.name = port.name, .buffer = buffer, .call = port.call});
  }
}

BufferId Lowering::add_buffer(const std::string& name, ValueId id, StepId first) {
  return emitter_.add({.name = name,
                       .type = type(id),
                       .rounded = value(id).type.dtype,
                       .box = box(id),
                       .global = value(id).type.shape,
                       .bytes = part(id).bytes,
                       .first = first.number(),
                       .last = first.number()});
}

/// A view of the state that a value reads: the part that is complete on this rank once the state is finalized.
BufferId Lowering::add_view(ValueId id) {
  const graph::StateId state = value(id).state;
  Buffer view = settings_.finalized[state];
  view.part_of = buffer_of(state);
  return emitter_.add(std::move(view));
}

/// A buffer for another stage's contribution to a gradient. It has the shape of this rank's part.
BufferId Lowering::add_received(Buffer state) {
  state.name += "/received";
  state.category = Category::communication;
  state.first = state.last = end_.number();
  return emitter_.add(std::move(state));
}

Region Lowering::staging(const std::string& name, graph::DType dtype, const std::vector<std::int64_t>& counts,
                         Span span) {
  const std::int64_t elements = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  return {emitter_.add_staging(name, dtype, elements, span), elements};
}

/// Gives a node's result a buffer, which lives from the node's first step.
BufferId Lowering::bind_result(graph::NodeId n, std::size_t result, std::vector<BufferId>& taken) {
  const ValueId id = node(n).outputs[result];
  if (buffer_of_[id].exists()) {
    return buffer_of_[id];
  }
  const BufferId buffer = result_buffer(n, result, taken);
  buffer_of_[id] = buffer;
  emitter_.extend(buffer, std::max(usage_.spans[n].end, usage_.last_use[id]));
  return buffer;
}

BufferId Lowering::result_buffer(graph::NodeId n, std::size_t result, std::vector<BufferId>& taken) {
  const ValueId id = node(n).outputs[result];
  if (usage_.fused[id] != nullptr) {
    return buffer_of(usage_.fused[id]->state);
  }
  const std::optional<BufferId> reused = reusable(n, result);
  if (reused && std::find(taken.begin(), taken.end(), *reused) == taken.end()) {
    taken.push_back(*reused);
    return *reused;
  }
  return add_buffer(value(id).name, id, usage_.spans[n].begin);
}

/// The buffer of an operand that the result may overwrite; nothing if there is none.
std::optional<BufferId> Lowering::reusable(graph::NodeId n, std::size_t result) const {
  const SplitNode& made = node(n);
  const Span span = usage_.spans[n];
  const std::uint64_t bytes = part(made.outputs[result]).bytes;
  const graph::TensorType& type = value(made.outputs[result]).type;
  for (const auto& [output, input] : made.op->in_place) {
    if (output != result || input >= made.inputs.size()) {
      continue;
    }
    const ValueId operand = made.inputs[input];
    const BufferId buffer = buffer_of_[operand];
    const bool transient = !is_state(buffer) && value(operand).producer.exists();
    const bool once = std::count(made.inputs.begin(), made.inputs.end(), operand) == 1;
    const bool last = usage_.last_use[operand] == span.end && usage_.copied_at[operand] < span.begin;
    // Readers see the buffer's shape, so the result must have the operand's type.
    const bool same_type = program_.buffers[buffer].bytes == bytes && value(operand).type.dtype == type.dtype &&
                           value(operand).type.shape == type.shape;
    if (transient && once && last && same_type) {
      return buffer;
    }
  }
  return std::nullopt;
}

}  // namespace shardrun::partition
