#include <fmt/format.h>

#include <utility>

#include "core/runtime/executor.h"

namespace shardrun::runtime {

std::optional<std::string> Executor::non_finite_result(std::size_t program, const Call& call) const {
  const partition::Program& at = programs_.programs[program];
  if (call.instruction->kind == partition::Instruction::Kind::wait) {
    return bad_arrival(program, at.transfers[call.instruction->transfer]);
  }
  for (const partition::BufferId output : call.instruction->outputs) {
    if (is_bad(views_[program][output])) {
      return fmt::format("{} (op {}, function {})", at.buffers[output].name, call.instruction->op->name, at.function);
    }
  }
  return std::nullopt;
}

/// The name of a tensor that arrived with a value that is not finite. A bucket has the elements of several states.
std::optional<std::string> Executor::bad_arrival(std::size_t program, const partition::Transfer& transfer) const {
  const partition::Program& at = programs_.programs[program];
  const partition::BufferId buffer = transfer.recv.buffer;
  if (!buffer.exists()) {
    return std::nullopt;
  }
  const partition::Buffer& received = at.buffers[buffer];
  const std::uint64_t bytes = static_cast<std::uint64_t>(transfer.recv.elements) * graph::element_bytes(transfer.dtype);
  const auto name = [&](const partition::Buffer& bad_buffer) {
    return fmt::format("{} ({} over {}, function {})", bad_buffer.name, partition::to_string(transfer.collective),
                       programs_.mesh.axes[transfer.axis].name, at.function);
  };
  if (buffer >= partition::buffer_of(programs_.states.next())) {
    return is_bad(views_[program][buffer]) ? std::optional(name(received)) : std::nullopt;
  }
  for (const graph::StateId s : programs_.states.ids()) {
    const partition::Buffer& state = programs_.states[s];
    if (state.offset >= received.offset && state.offset < received.offset + bytes && is_bad(finalized_[s])) {
      return name(state);
    }
  }
  return std::nullopt;
}

namespace {

/// Instruction numbers of different stages are not comparable. But stages have no layers in common, except that a
/// received value has the layer in which it was made.
NonFiniteResult::Order order_of(const partition::Program& program, const partition::Instruction& instruction,
                                std::uint32_t number) noexcept {
  const bool forward = instruction.phase == graph::Phase::forward;
  const bool received = instruction.transfer.exists() &&
                        program.transfers[instruction.transfer].collective == partition::Collective::receive;
  return {static_cast<std::int32_t>(instruction.call), static_cast<std::int32_t>(instruction.phase),
          forward ? instruction.layer : -instruction.layer, received ? 1 : 0, static_cast<std::int32_t>(number)};
}

}  // namespace

void Executor::check(const Call& call, std::optional<NonFiniteResult>& first) const {
  const NonFiniteResult::Order order = order_of(programs_.programs[call.program], *call.instruction, call.number);
  if (call.instruction->kind == partition::Instruction::Kind::move || (first && first->order <= order)) {
    return;
  }
  if (std::optional<std::string> name = non_finite_result(call.program, call)) {
    first = {.name = std::move(*name), .order = order};
  }
}

}  // namespace shardrun::runtime
