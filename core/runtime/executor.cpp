#include "core/runtime/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/base/error.h"
#include "plugins/loader/hooks.h"

namespace shardrun::runtime {
namespace {

/// Copies a box row by row: dimension `d` and the later ones.
void copy_box(const partition::Copy& copy, std::size_t d, const std::byte* from, std::byte* to, std::size_t bytes) {
  const bool consecutive = d + 1 == copy.shape.size() && copy.from_strides[d] == 1 && copy.to_strides[d] == 1;
  if (d == copy.shape.size() || consecutive) {
    const std::int64_t elements = consecutive ? copy.shape[d] : 1;
    std::memcpy(to, from, static_cast<std::size_t>(elements) * bytes);
    return;
  }
  for (std::int64_t i = 0; i < copy.shape[d]; ++i) {
    copy_box(copy, d + 1, from + i * copy.from_strides[d] * static_cast<std::int64_t>(bytes),
             to + i * copy.to_strides[d] * static_cast<std::int64_t>(bytes), bytes);
  }
}

const partition::Port* find_port(const std::vector<partition::Port>& ports, std::string_view name, std::size_t call) {
  const auto found =
      std::ranges::find_if(ports, [&](const partition::Port& port) { return port.name == name && port.call == call; });
  return found == ports.end() ? nullptr : &*found;
}

[[noreturn]] void refuse_port(const partition::Program& program, std::string_view name) {
  throw Error(ErrorCode::internal, fmt::format("function {} has no input or output '{}'", program.function, name));
}

}  // namespace

std::size_t Executor::find(std::string_view function, std::int64_t rows, bool last) const {
  return static_cast<std::size_t>(&programs_.find(function, rows, last) - programs_.programs.data());
}

std::size_t Executor::find(graph::Role role) const {
  return static_cast<std::size_t>(&programs_.find(role) - programs_.programs.data());
}

std::optional<device::TensorView> Executor::find_input(std::size_t program, std::string_view name,
                                                       std::size_t call) const {
  const partition::Port* port = find_port(programs_.programs[program].inputs, name, call);
  return port == nullptr ? std::nullopt : std::optional(views_[program][port->buffer]);
}

device::TensorView Executor::input(std::size_t program, std::string_view name) const {
  const std::optional<device::TensorView> found = find_input(program, name);
  if (!found) {
    refuse_port(programs_.programs[program], name);
  }
  return *found;
}

device::TensorView Executor::output(std::size_t program, std::string_view name) const {
  const partition::Program& at = programs_.programs[program];
  const partition::Port* port = find_port(at.outputs, name, 0);
  if (port == nullptr) {
    refuse_port(at, name);
  }
  return views_[program][port->buffer];
}

void Executor::call_hook(const Call& call, const device::Scalars& scalars) {
  const partition::HookCall& hook = *call.instruction->hook;
  sr_hook_call made{};
  made.call = hook.call;
  made.member = hook.member;
  made.buffer_count = static_cast<std::uint32_t>(call.hook_buffers.size());
  made.buffers = call.hook_buffers.data();
  made.elements = call.hook_elements.data();
  made.step = scalars.step;
  made.samples = hook.samples.all;
  made.own_samples = hook.samples.own;
  hooks_->run(*hook_groups_[hook.group], made);
}

void Executor::compute(Call& call, const device::Scalars& scalars) {
  const partition::Accumulate mode = call.instruction->accumulate;
  const bool accumulate = mode == partition::Accumulate::always ||
                          (mode == partition::Accumulate::after_first && !scalars.first_microbatch);
  const device::KernelCall kernel_call{.attributes = call.instruction->attributes,
                                       .inputs = call.inputs,
                                       .outputs = call.outputs,
                                       .accumulate = accumulate,
                                       .scratch = call.scratch,
                                       .scalars = scalars,
                                       .threads = threads_,
                                       .prepared = call.prepared.get()};
  device_.run(*call.kernel, kernel_call);
}

void Executor::perform(Call& call, std::span<const device::Scalars> scalars) {
  switch (call.instruction->kind) {
    case partition::Instruction::Kind::compute:
      compute(call, scalars[static_cast<std::size_t>(call.instruction->call)]);
      break;
    case partition::Instruction::Kind::move:
      for (const partition::Copy& copy : call.instruction->copies) {
        const std::size_t bytes = graph::element_bytes(call.inputs[0].dtype);
        copy_box(copy, 0,
                 static_cast<const std::byte*>(call.inputs[0].data) + static_cast<std::size_t>(copy.from) * bytes,
                 static_cast<std::byte*>(call.outputs[0].data) + static_cast<std::size_t>(copy.to) * bytes, bytes);
      }
      break;
    case partition::Instruction::Kind::hook: call_hook(call, scalars.front()); break;
    case partition::Instruction::Kind::start:
      *call.sent += call.bytes;
      communicator_->start(call.transfer);
      break;
    case partition::Instruction::Kind::wait: communicator_->wait(call.transfer); break;
  }
}

void Executor::execute(Call& call, std::span<const device::Scalars> scalars) {
  if (ends_ && ends_()) {
    throw Error(ErrorCode::aborted, "the call was ended before all of it was computed");
  }
  if (!timed_) {
    perform(call, scalars);
    return;
  }
  const std::int64_t begin = now_in_nanoseconds();
  try {
    perform(call, scalars);
  } catch (...) {
    note(call, begin, true);
    throw;
  }
  note(call, begin, false);
}

void Executor::run(std::size_t program, std::span<const device::Scalars> scalars) {
  for (Call& call : calls_[program]) {
    execute(call, scalars);
  }
}

std::size_t Executor::advance(std::size_t program, std::span<const device::Scalars> scalars, std::size_t at) {
  std::vector<Call>& calls = calls_[program];
  while (at < calls.size()) {
    Call& call = calls[at];
    if (call.instruction->kind == partition::Instruction::Kind::wait && !communicator_->test(call.transfer)) {
      return at;
    }
    execute(call, scalars);
    ++at;
  }
  return at;
}

}  // namespace shardrun::runtime
