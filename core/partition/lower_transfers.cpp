#include <fmt/format.h>

#include <utility>

#include "core/base/error.h"
#include "core/partition/copies.h"
#include "core/partition/lowering.h"
#include "core/partition/parts.h"

namespace shardrun::partition {

using graph::ValueId;

void Lowering::start_transfers(const Step& step, StepId s) {
  for (const graph::NodeId n : step.nodes) {
    const Transition::Kind kind = node(n).transition->kind;
    if (kind == Transition::Kind::send || kind == Transition::Kind::receive) {
      prepare_message(n);
    } else {
      prepare_collective(n);
    }
  }
  for (const graph::NodeId n : step.nodes) {
    start_in_order(n, s);
  }
  for (const graph::NodeId n : step.nodes) {
    const Transition::Kind kind = node(n).transition->kind;
    if (kind == Transition::Kind::exchange || kind == Transition::Kind::add_shared) {
      node(n).op->shifts ? emit_op(n, s) : move_own(n, s);
    }
  }
}

/// Starts transfers in the order of Transition::place: a send can have to wait for receives that come later.
void Lowering::start_in_order(graph::NodeId n, StepId s) {
  const Transition& transition = *node(n).transition;
  const bool is_direct =
      transition.axis == settings_.partition.pipeline.axis && settings_.rank.is_direct(transition.axis);
  if (transition.place.has_value() != is_direct) {
    throw Error(ErrorCode::internal,
                fmt::format("function {}: {} moves the memory of the {}, and the stage's functions were made for the "
                            "other",
                            function_.name, node(n).name, is_direct ? "device" : "host"));
  }
  if (!transition.place) {
    emitter_.append(transfer_step(Instruction::Kind::start, n), s);
    return;
  }
  held_back_.emplace(*transition.place, n);
  for (auto next = held_back_.begin(); next != held_back_.end() && next->first == next_place_;
       next = held_back_.erase(next)) {
    emitter_.append(transfer_step(Instruction::Kind::start, next->second), s);
    ++next_place_;
  }
  if (transition.kind != Transition::Kind::send && held_back_.contains(*transition.place)) {
    throw Error(ErrorCode::internal, fmt::format("function {}: {} is to start after something that has yet to be made",
                                                 function_.name, node(n).name));
  }
}

void Lowering::finish_transfers(const Step& step, StepId s) {
  for (const graph::NodeId n : step.nodes) {
    emitter_.append(transfer_step(Instruction::Kind::wait, n), s);
    const auto copies = unpacked_.find(n);
    if (copies != unpacked_.end() && node(n).transition->kind == Transition::Kind::add_shared) {
      add_received_blocks(n, copies->second, s);
    } else if (copies != unpacked_.end()) {
      const Transfer& transfer = program_.transfers[transfer_of_.at(n)];
      emit_move(node(n), transfer.recv.buffer, buffer_of_[node(n).outputs[0]], copies->second, s);
    }
  }
}

/// Adds the received blocks to this rank's elements, in the order of the members. The blocks are not adjacent in the
/// result, so each block is added on its own.
void Lowering::add_received_blocks(graph::NodeId n, const std::vector<Copy>& blocks, StepId s) {
  const SplitNode& made = node(n);
  const BufferId result = buffer_of_[made.outputs[0]];
  const BufferId received = program_.transfers[transfer_of_.at(n)].recv.buffer;
  const graph::DType dtype = type(made.outputs[0]).dtype;
  for (const Copy& block : blocks) {
    const std::int64_t elements = graph::element_count(block.shape);
    const BufferId sum = emitter_.add_staging(made.name + "/sum", dtype, elements, {s, s});
    const BufferId added = emitter_.add_staging(made.name + "/added", dtype, elements, {s, s});
    const Copy dense{.from = block.from, .shape = {elements}, .from_strides = {1}, .to_strides = {1}};
    Copy back = block;
    back.from = 0;
    Copy own = back;
    std::swap(own.from, own.to);
    std::swap(own.from_strides, own.to_strides);
    emit_move(made, result, sum, {own}, s);
    emit_move(made, received, added, {dense}, s);
    emitter_.append({.op = &graph::find_op("copy"),
                     .name = made.name,
                     .inputs = {added},
                     .outputs = {sum},
                     .accumulate = Accumulate::always,
                     .phase = made.phase,
                     .layer = made.layer,
                     .flops = elements,
                     .call = made.call,
                     .action = made.action},
                    s);
    emit_move(made, sum, result, {back}, s);
  }
}

/// For a halo exchange or add_shared: copies the elements of the result that are in this rank's operand.
void Lowering::move_own(graph::NodeId n, StepId s) {
  const ValueId from = node(n).inputs[0];
  const ValueId to = node(n).outputs[0];
  const Copy own = shared_copy(box(from), box(to));
  if (graph::element_count(own.shape) > 0) {
    emit_move(node(n), buffer_of_[from], buffer_of_[to], {own}, s);
  }
}

Instruction Lowering::transfer_step(Instruction::Kind kind, graph::NodeId n) const {
  const SplitNode& made = node(n);
  return {.kind = kind,
          .op = &op_of(made.transition->kind),
          .name = made.name,
          .phase = made.phase,
          .layer = made.layer,
          .transfer = transfer_of_.at(n),
          .call = made.call,
          .action = made.action};
}

/// Prepares the transfer of a value between two stages.
void Lowering::prepare_message(graph::NodeId n) {
  const SplitNode& made = node(n);
  const Transition& transition = *made.transition;
  const bool sends = transition.kind == Transition::Kind::send;
  const ValueId id = sends ? made.inputs[0] : made.outputs[0];
  if (sends) {
    emitter_.extend(buffer_of_[id], usage_.spans[n].end);
  } else {
    std::vector<BufferId> taken;
    (void)bind_result(n, 0, taken);
  }
  const Region region{buffer_of_[id], graph::element_count(type(id))};
  transfer_of_[n] = emitter_.add_transfer({.name = value(id).name,
                                           .collective = sends ? Collective::send : Collective::receive,
                                           .axis = transition.axis,
                                           .dtype = type(id).dtype,
                                           .send = sends ? region : Region{},
                                           .recv = sends ? Region{} : region,
                                           .link = transition.link},
                                          usage_.spans[n]);
  if (settings_.partition.overlaps && transition.link.to.number() == transition.link.from.number() + 1 && sends) {
    keep(buffer_of_[id]);
    keep(program_.transfers[transfer_of_[n]].scratch);
  }
}

/// Gives a buffer memory that no other call uses.
void Lowering::keep(BufferId buffer) {
  if (buffer.exists() && !is_state(buffer)) {
    program_.buffers[buffer].is_kept = !program_.buffers[buffer].part_of.exists();
  }
}

/// Makes a collective's buffers and transfer. Packs the elements to send, if necessary.
void Lowering::prepare_collective(graph::NodeId n) {
  const SplitNode& made = node(n);
  const Transition& transition = *made.transition;
  const Span span = usage_.spans[n];
  const ValueId from = made.inputs[0];
  const ValueId to = made.outputs[0];
  const BufferId source = buffer_of_[from];
  emitter_.extend(source, span.end);
  std::vector<BufferId> taken;
  const BufferId result = bind_result(n, 0, taken);
  if (transition.gather >= 0 && !is_state(result)) {
    program_.buffers[result].category = Category::communication;
  }
  const Parts parts =
      parts_of(transition, value(from).type.shape, value(from).placement, value(to).placement, mesh_, coordinates_);
  Transfer transfer{.name = value(from).name,
                    .collective = parts.collective,
                    .axis = transition.axis,
                    .reduction = transition.reduction,
                    .dtype = type(from).dtype,
                    .rounded = value(from).type.dtype,
                    .send = {source, graph::element_count(type(from))},
                    .recv = {result, graph::element_count(type(to))},
                    .send_counts = counts(parts.sent),
                    .recv_counts = counts(parts.received)};
  if (parts.packed) {
    transfer.send = staging(value(from).name + "/sent", type(from).dtype, transfer.send_counts, span);
    emit_move(made, source, transfer.send.buffer, pack(type(from).shape, box(from), parts.sent), span.begin);
  }
  if (parts.unpacked) {
    transfer.recv = staging(value(from).name + "/received", type(from).dtype, transfer.recv_counts, span);
    unpacked_[n] = unpack(type(to).shape, box(to), parts.received);
  }
  transfer_of_[n] = emitter_.add_transfer(std::move(transfer), span);
}

/// For gradients with contributions from several stages: sends this stage's sum to the stage that updates the
/// parameter, or, on that stage, receives the sums and adds them up.
void Lowering::exchange_ties() {
  for (const Tie& tie : function_.ties) {
    exchange_tie(tie);
  }
}

void Lowering::exchange_tie(const Tie& tie) {
  const Buffer state = settings_.states[tie.state];
  const bool sends = settings_.partition.stage_at(coordinates_) == tie.link.from;
  const Region region{sends ? buffer_of(tie.state) : add_received(state), graph::element_count(state.type)};
  const TransferId id = emitter_.add_transfer({.name = state.name,
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
                     .outputs = {buffer_of(tie.state)},
                     .accumulate = Accumulate::always,
                     .phase = graph::Phase::backward_weight,
                     .flops = region.elements,
                     .call = last_call()},
                    end_);
  }
}

}  // namespace shardrun::partition
