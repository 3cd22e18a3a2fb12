#include "core/partition/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "core/base/error.h"
#include "core/partition/copies.h"
#include "core/partition/parts.h"
#include "core/partition/settle.h"
#include "core/partition/usage.h"

namespace shardrun::partition {
namespace {

using graph::Function;
using graph::Node;
using graph::StateWrite;
using graph::Value;
using graph::ValueId;

/// A rank's part of a value.
struct Part {
  mesh::Box box;
  graph::TensorType type;
  std::uint64_t bytes = 0;
};

/// What an instruction costs.
struct Cost {
  std::int64_t flops = 0;
  std::uint64_t scratch_bytes = 0;
};

class Lowering {
 public:
  Lowering(const ShardedFunction& sharded, const LowerSettings& settings)
      : graph_(settings.graph),
        sharded_(sharded),
        settings_(settings),
        function_(sharded.function),
        mesh_(settings.partition.placements.mesh),
        device_(settings.rank.device),
        coordinates_(mesh::coordinates_of(mesh_, settings.rank.rank)),
        end_(static_cast<std::int32_t>(settings.steps.size())),
        usage_(usage_of(settings.graph, sharded, settings.steps)),
        emitter_(settings, end_),
        program_(emitter_.program()),
        settler_(settings, coordinates_, emitter_, usage_.complete_at) {
    program_.function = function_.name;
    program_.role = function_.role;
    program_.rows = function_.rows;
    program_.call_rows = sharded_.call_rows.empty() ? std::vector{function_.rows} : sharded_.call_rows;
    buffer_of_.assign(function_.values.size(), -1);
    parts_.resize(function_.values.size());
    for (std::size_t v = 0; v < function_.values.size(); ++v) {
      if (sharded.alike_value(v) == v) {
        mesh::Box box = mesh::box_of(function_.values[v].type.shape, sharded.placements[v], mesh_, coordinates_);
        graph::TensorType type = part_type(function_.values[v].type, box);
        const std::uint64_t bytes =
            static_cast<std::uint64_t>(graph::element_count(type)) * device_.element_bytes(type.dtype);
        parts_[v] = {.box = std::move(box), .type = std::move(type), .bytes = bytes};
      }
    }
    costs_.resize(sharded.alike_nodes.size());
  }

  Program run() {
    bind_states_and_inputs();
    for (std::int32_t s = 0; s < end_; ++s) {
      emit_step(settings_.steps[index(s)], s);
      copy_to_states(s);
      settler_.start(s);
    }
    copy_to_states(end_);
    exchange_ties();
    settler_.start(end_);
    settler_.finish(end_);
    for (const graph::Port& port : function_.outputs) {
      program_.outputs.push_back({.name = port.name, .buffer = buffer_of_[index(port.value)]});
    }
    return emitter_.finish();
  }

 private:
  [[nodiscard]] const Value& value(ValueId id) const { return function_.values[index(id)]; }
  /// Of this rank's part.
  [[nodiscard]] const Part& part(ValueId id) const { return parts_[sharded_.alike_value(index(id))]; }
  [[nodiscard]] const graph::TensorType& type(ValueId id) const { return part(id).type; }
  [[nodiscard]] const mesh::Box& box(ValueId id) const { return part(id).box; }

  BufferId add_buffer(const std::string& name, ValueId id, std::int32_t first) {
    program_.buffers.push_back({.name = name,
                                .type = type(id),
                                .box = box(id),
                                .global = value(id).type.shape,
                                .bytes = part(id).bytes,
                                .first = first,
                                .last = first});
    return static_cast<BufferId>(program_.buffers.size()) - 1;
  }

  void bind_states_and_inputs() {
    for (std::size_t v = 0; v < function_.values.size(); ++v) {
      const graph::StateId state = function_.values[v].state;
      if (state >= 0) {
        const bool whole = box(static_cast<ValueId>(v)) == settings_.states[index(state)].box;
        buffer_of_[v] = whole ? state : add_view(static_cast<ValueId>(v));
      }
    }
    for (const graph::Port& port : function_.inputs) {
      const BufferId buffer = add_buffer(port.name, port.value, 0);
      buffer_of_[index(port.value)] = buffer;
      program_.buffers[index(buffer)].last = std::max(0, usage_.last_use[index(port.value)]);
      const std::size_t number = program_.inputs.size();
      program_.inputs.push_back({.name = port.name,
                                 .buffer = buffer,
                                 .call = sharded_.input_calls.empty() ? 0 : sharded_.input_calls[number]});
    }
  }

  /// An operand's buffer that the result may take over, or nothing.
  [[nodiscard]] std::optional<BufferId> reusable(graph::NodeId n, std::size_t result) const {
    const Node& node = function_.nodes[index(n)];
    const Span span = usage_.spans[index(n)];
    const std::uint64_t bytes = part(node.outputs[result]).bytes;
    for (const auto& [output, input] : node.op->in_place) {
      if (output != static_cast<int>(result) || index(input) >= node.inputs.size()) {
        continue;
      }
      const ValueId operand = node.inputs[index(input)];
      const BufferId buffer = buffer_of_[index(operand)];
      const bool transient = index(buffer) >= graph_.states.size() && value(operand).producer >= 0;
      const bool once = std::count(node.inputs.begin(), node.inputs.end(), operand) == 1;
      const bool last = usage_.last_use[index(operand)] == span.end && usage_.copied_at[index(operand)] < span.begin;
      if (transient && once && last && program_.buffers[index(buffer)].bytes == bytes) {
        return buffer;
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] BufferId result_buffer(graph::NodeId n, std::size_t result, std::vector<BufferId>& taken) {
    const ValueId id = function_.nodes[index(n)].outputs[result];
    if (usage_.fused[index(id)] != nullptr) {
      return usage_.fused[index(id)]->state;
    }
    const std::optional<BufferId> reused = reusable(n, result);
    if (reused && std::find(taken.begin(), taken.end(), *reused) == taken.end()) {
      taken.push_back(*reused);
      return *reused;
    }
    return add_buffer(value(id).name, id, usage_.spans[index(n)].begin);
  }

  void emit_op(const Node& node, graph::NodeId n, std::int32_t s) {
    Instruction instruction{.op = node.op,
                            .name = node.name,
                            .attributes = node.attributes,
                            .phase = node.phase,
                            .layer = node.layer,
                            .call = call_of(n),
                            .action = action_of(n)};
    if (sharded_.transitions[index(n)]) {
      instruction.attributes.add("missing", "received");  // its kernel leaves these elements as they are
    }
    instruction.inputs.reserve(node.inputs.size());
    for (const ValueId id : node.inputs) {
      instruction.inputs.push_back(buffer_of_[index(id)]);
      emitter_.extend(buffer_of_[index(id)], s);
    }
    std::vector<BufferId> taken;
    for (std::size_t o = 0; o < node.outputs.size(); ++o) {
      const ValueId id = node.outputs[o];
      instruction.outputs.push_back(bind_result(n, o, taken));
      if (o == 0 && usage_.fused[index(id)] != nullptr) {
        instruction.accumulate = accumulate_of(usage_.fused[index(id)]->mode);
      }
    }
    const Cost cost = cost_of(node, n, instruction.attributes);
    instruction.flops = cost.flops;
    instruction.scratch_bytes = cost.scratch_bytes;
    emitter_.append(std::move(instruction), s);
  }

  /// Reckoned once for nodes that are alike.
  Cost cost_of(const Node& node, graph::NodeId n, const graph::Attributes& attributes) {
    if (costs_.empty()) {
      return reckon(node, attributes);
    }
    std::optional<Cost>& cost = costs_[sharded_.alike_node(index(n))];
    cost = cost ? cost : reckon(node, attributes);
    return *cost;
  }

  [[nodiscard]] Cost reckon(const Node& node, const graph::Attributes& attributes) const {
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
            .scratch_bytes = kernel.scratch_bytes == nullptr ? 0 : kernel.scratch_bytes(shape, settings_.rank.threads)};
  }

  /// This rank's part of a state, before or after it is settled, as the buffer of a value of its own.
  BufferId add_view(ValueId id) {
    const graph::StateId state = value(id).state;
    Buffer view = settings_.settled[index(state)];
    view.part_of = state;
    program_.buffers.push_back(std::move(view));
    return static_cast<BufferId>(program_.buffers.size()) - 1;
  }

  void emit_step(const Step& step, std::int32_t s) {
    switch (step.kind) {
      case Step::Kind::compute: emit(step.nodes.front(), s); break;
      case Step::Kind::start:
        for (const graph::NodeId n : step.nodes) {
          prepare_transfer(n);
        }
        for (const graph::NodeId n : step.nodes) {
          emitter_.append(transfer_step(Instruction::Kind::start, n), s);
        }
        for (const graph::NodeId n : step.nodes) {
          if (sharded_.transitions[index(n)]->kind == Transition::Kind::exchange) {
            emit_op(function_.nodes[index(n)], n, s);
          }
        }
        break;
      case Step::Kind::wait:
        for (const graph::NodeId n : step.nodes) {
          emitter_.append(transfer_step(Instruction::Kind::wait, n), s);
          unpack_received(n, s);
        }
        break;
    }
  }

  void emit(graph::NodeId n, std::int32_t s) {
    const std::optional<Transition>& transition = sharded_.transitions[index(n)];
    if (transition) {
      emit_slice(function_.nodes[index(n)], n, s);
    } else {
      emit_op(function_.nodes[index(n)], n, s);
    }
  }

  void emit_slice(const Node& node, graph::NodeId n, std::int32_t s) {
    const ValueId from = node.inputs[0];
    const ValueId to = node.outputs[0];
    const BufferId source = buffer_of_[index(from)];
    emitter_.extend(source, s);
    std::vector<BufferId> taken;
    const BufferId result = bind_result(n, 0, taken);
    emit_move(node, source, result, {gather_copy(type(from).shape, box(from), box(to), 0)}, s);
  }

  /// The buffer of a node's result, from when the node begins.
  BufferId bind_result(graph::NodeId n, std::size_t result, std::vector<BufferId>& taken) {
    const ValueId id = function_.nodes[index(n)].outputs[result];
    if (buffer_of_[index(id)] >= 0) {
      return buffer_of_[index(id)];
    }
    const BufferId buffer = result_buffer(n, result, taken);
    buffer_of_[index(id)] = buffer;
    emitter_.extend(buffer, std::max(usage_.spans[index(n)].end, usage_.last_use[index(id)]));
    return buffer;
  }

  void prepare_transfer(graph::NodeId n) {
    const Transition& transition = *sharded_.transitions[index(n)];
    if (transition.kind == Transition::Kind::send || transition.kind == Transition::Kind::receive) {
      prepare_message(n, transition);
    } else {
      prepare_collective(n, transition);
    }
  }

  /// What goes from one stage to another.
  void prepare_message(graph::NodeId n, const Transition& transition) {
    const Node& node = function_.nodes[index(n)];
    const bool sends = transition.kind == Transition::Kind::send;
    const ValueId id = sends ? node.inputs[0] : node.outputs[0];
    if (sends) {
      emitter_.extend(buffer_of_[index(id)], usage_.spans[index(n)].end);
    } else {
      std::vector<BufferId> taken;
      (void)bind_result(n, 0, taken);
    }
    const Region region{buffer_of_[index(id)], graph::element_count(type(id))};
    transfer_of_[n] = emitter_.add_transfer({.name = value(id).name,
                                             .collective = sends ? Collective::send : Collective::receive,
                                             .axis = transition.axis,
                                             .dtype = type(id).dtype,
                                             .send = sends ? region : Region{},
                                             .recv = sends ? Region{} : region,
                                             .link = transition.link},
                                            usage_.spans[index(n)]);
  }

  /// A transition's buffers and its transfer; what is sent is packed.
  void prepare_collective(graph::NodeId n, const Transition& transition) {
    const Node& node = function_.nodes[index(n)];
    const Span span = usage_.spans[index(n)];
    const ValueId from = node.inputs[0];
    const ValueId to = node.outputs[0];
    const BufferId source = buffer_of_[index(from)];
    emitter_.extend(source, span.end);
    std::vector<BufferId> taken;
    const BufferId result = bind_result(n, 0, taken);
    if (transition.gather >= 0 && index(result) >= graph_.states.size()) {
      program_.buffers[index(result)].category = Category::communication;
    }
    const Parts parts = parts_of(transition, value(from).type.shape, sharded_.placements[index(from)],
                                 sharded_.placements[index(to)], mesh_, coordinates_);
    Transfer transfer{.name = value(from).name,
                      .collective = parts.collective,
                      .axis = transition.axis,
                      .reduction = transition.reduction,
                      .dtype = value(from).type.dtype,
                      .send = {source, graph::element_count(type(from))},
                      .recv = {result, graph::element_count(type(to))},
                      .send_counts = counts(parts.sent),
                      .recv_counts = counts(parts.received)};
    if (parts.packed) {
      transfer.send = staging(value(from).name + "/sent", value(from).type.dtype, transfer.send_counts, span);
      emit_move(node, source, transfer.send.buffer, pack(type(from).shape, box(from), parts.sent), span.begin);
    }
    if (parts.unpacked) {
      transfer.recv = staging(value(from).name + "/received", value(from).type.dtype, transfer.recv_counts, span);
      unpacked_[n] = unpack(type(to).shape, box(to), parts.received);
    }
    transfer_of_[n] = emitter_.add_transfer(std::move(transfer), span);
  }

  [[nodiscard]] Instruction transfer_step(Instruction::Kind kind, graph::NodeId n) const {
    const Node& node = function_.nodes[index(n)];
    return {.kind = kind,
            .op = &op_of(sharded_.transitions[index(n)]->kind),
            .name = node.name,
            .phase = node.phase,
            .layer = node.layer,
            .transfer = transfer_of_.at(n),
            .call = call_of(n),
            .action = action_of(n)};
  }

  [[nodiscard]] std::int32_t call_of(graph::NodeId n) const {
    return sharded_.node_calls.empty() ? 0 : sharded_.node_calls[index(n)];
  }
  [[nodiscard]] std::int32_t action_of(graph::NodeId n) const {
    if (!sharded_.node_actions.empty()) {
      return sharded_.node_actions[index(n)];
    }
    if (function_.role != graph::Role::repeated) {
      return -1;
    }
    return function_.nodes[index(n)].phase == graph::Phase::forward ? 0 : 1;
  }
  /// Which what is settled at the end belongs to.
  [[nodiscard]] std::int32_t last_call() const { return static_cast<std::int32_t>(program_.call_rows.size()) - 1; }

  void unpack_received(graph::NodeId n, std::int32_t s) {
    const auto copies = unpacked_.find(n);
    if (copies != unpacked_.end()) {
      const Node& node = function_.nodes[index(n)];
      const Transfer& transfer = program_.transfers[index(transfer_of_.at(n))];
      emit_move(node, transfer.recv.buffer, buffer_of_[index(node.outputs[0])], copies->second, s);
    }
  }

  Region staging(const std::string& name, graph::DType dtype, const std::vector<std::int64_t>& counts, Span span) {
    const std::int64_t elements = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    return {emitter_.add_staging(name, dtype, elements, device_.element_bytes(dtype), span), elements};
  }

  void emit_move(const Node& node, BufferId from, BufferId to, std::vector<Copy> copies, std::int32_t n) {
    const graph::NodeId producer = value(node.outputs[0]).producer;
    emitter_.append({.kind = Instruction::Kind::move,
                     .op = &op_of(sharded_.transitions[index(producer)]->kind),
                     .name = node.name,
                     .inputs = {from},
                     .outputs = {to},
                     .phase = node.phase,
                     .layer = node.layer,
                     .copies = std::move(copies),
                     .call = call_of(producer),
                     .action = action_of(producer)},
                    n);
  }

  /// Gradients that several stages add to: sent by those that do not update them, added up by the one that does.
  void exchange_ties() {
    for (const Tie& tie : sharded_.ties) {
      const Buffer state = settings_.states[index(tie.state)];
      const bool sends = mesh_coordinate(settings_.partition.pipeline.axis) == tie.link.from;
      const Region region{sends ? tie.state : add_received(state), graph::element_count(state.type)};
      const std::int32_t id = emitter_.add_transfer({.name = state.name,
                                                     .collective = sends ? Collective::send : Collective::receive,
                                                     .axis = settings_.partition.pipeline.axis,
                                                     .dtype = state.type.dtype,
                                                     .send = sends ? region : Region{},
                                                     .recv = sends ? Region{} : region,
                                                     .link = tie.link},
                                                    {end_, end_});
      for (const Instruction::Kind kind : {Instruction::Kind::start, Instruction::Kind::wait}) {
        emitter_.append({.kind = kind,
                         .op = &op_of(sends ? Transition::Kind::send : Transition::Kind::receive),
                         .name = state.name,
                         .phase = graph::Phase::backward_weight,
                         .transfer = id,
                         .call = last_call()},
                        end_);
      }
      if (!sends) {
        emitter_.append({.op = &graph::find_op("copy"),
                         .name = "tie/" + state.name,
                         .inputs = {region.buffer},
                         .outputs = {tie.state},
                         .accumulate = Accumulate::always,
                         .phase = graph::Phase::backward_weight,
                         .flops = region.elements,
                         .call = last_call()},
                        end_);
      }
    }
  }

  /// Another stage's part of a gradient, of the same shape as this one's.
  BufferId add_received(Buffer state) {
    state.name += "/received";
    state.category = Category::communication;
    state.first = state.last = end_;
    program_.buffers.push_back(std::move(state));
    return static_cast<BufferId>(program_.buffers.size()) - 1;
  }

  [[nodiscard]] std::int64_t mesh_coordinate(mesh::AxisId axis) const { return coordinates_[index(axis)]; }

  static Accumulate accumulate_of(StateWrite::Mode mode) noexcept {
    switch (mode) {
      case StateWrite::Mode::assign:
      case StateWrite::Mode::first: return Accumulate::never;
      case StateWrite::Mode::accumulate: return Accumulate::after_first;
      case StateWrite::Mode::add: return Accumulate::always;
    }
    return Accumulate::never;
  }

  /// Copies for the writes that are made after step n and not by it.
  void copy_to_states(std::int32_t n) {
    for (const StateWrite* write : usage_.copies_after[index(n)]) {
      check_source(*write);
      const BufferId source = buffer_of_[index(write->value)];
      emitter_.extend(source, n);
      Instruction copy{.op = &graph::find_op("copy"),
                       .name = "write/" + graph_.states[index(write->state)].name,
                       .inputs = {source},
                       .outputs = {write->state},
                       .accumulate = accumulate_of(write->mode),
                       .action = n < end_ ? action_of(settings_.steps[index(n)].nodes.front()) : -1};
      copy.flops = write->mode == StateWrite::Mode::assign ? 0 : graph::element_count(type(write->value));
      emitter_.append(std::move(copy), n);
    }
  }

  /// A state copied to another must still hold its old contents when the copies are made.
  void check_source(const StateWrite& write) const {
    const graph::StateId source = value(write.value).state;
    if (source >= 0 && usage_.writes_to[index(source)] > 0) {
      throw Error(ErrorCode::internal, fmt::format("function {}: state {} is copied and overwritten in one call",
                                                   function_.name, graph_.states[index(source)].name));
    }
  }

  const graph::Graph& graph_;
  const ShardedFunction& sharded_;
  const LowerSettings& settings_;
  const Function& function_;
  const mesh::Mesh& mesh_;
  const device::Device& device_;
  mesh::Coordinates coordinates_;
  std::int32_t end_;
  Usage usage_;
  Emitter emitter_;
  Program& program_;  ///< that the emitter makes
  Settler settler_;
  std::vector<BufferId> buffer_of_;
  std::vector<Part> parts_;                 ///< this rank's, of each value that is the first of its like
  std::vector<std::optional<Cost>> costs_;  ///< of each node that is the first of its like; empty: none has its like
  std::map<graph::NodeId, std::int32_t> transfer_of_;    ///< of transitions that have begun
  std::map<graph::NodeId, std::vector<Copy>> unpacked_;  ///< what is left to do when their transfers have ended
};

}  // namespace

Program lower(const ShardedFunction& function, const LowerSettings& settings) {
  return Lowering(function, settings).run();
}

}  // namespace shardrun::partition
