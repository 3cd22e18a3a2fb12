#include "core/runtime/executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/device/elements.h"
#include "plugins/loader/hooks.h"

namespace shardrun::runtime {
namespace {

using Clock = std::chrono::steady_clock;

device::TensorView view_of(const partition::Buffer& buffer, std::byte* arena) {
  device::TensorView view;
  view.data = arena + buffer.offset;
  view.dtype = buffer.type.dtype;
  view.rounded = buffer.rounded;
  view.rank = static_cast<std::uint32_t>(buffer.type.shape.size());
  if (buffer.type.shape.size() > device::max_rank) {
    throw Error(ErrorCode::internal, fmt::format("{} has more than {} dimensions", buffer.name, device::max_rank));
  }
  std::copy(buffer.type.shape.begin(), buffer.type.shape.end(), view.shape.begin());
  const bool is_run = buffer.box.run.has_value();
  const std::vector<std::int64_t> first = is_run ? std::vector{buffer.box.run->begin} : buffer.box.origin;
  const std::vector<std::int64_t> whole =
      is_run ? std::vector{mesh::Box{buffer.box.origin, buffer.box.shape}.elements()} : buffer.global;
  std::copy(first.begin(), first.end(), view.origin.begin());
  std::copy(whole.begin(), whole.end(), view.global.begin());
  return view;
}

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

}  // namespace

Executor::Executor(const partition::Programs& programs, const device::Device& device, const plugins::Hooks* hooks)
    : programs_(programs),
      device_(device),
      hooks_(hooks),
      threads_(programs.threads),
      arena_(std::make_shared<memory::Arena>(programs.arena_bytes)) {
  for (const partition::Buffer& state : programs_.finalized) {
    finalized_.push_back(view_of(state, arena_->data()));
  }
  if (!programs_.hook_groups.empty() && hooks_ == nullptr) {
    throw Error(ErrorCode::internal, "the programs call hooks of a strategy, and the executor was given none");
  }
  for (const plan::HookGroup& group : programs_.hook_groups) {
    hook_groups_.push_back(std::make_unique<const plugins::HookTables>(group));
  }
  for (const partition::Program& program : programs_.programs) {
    IdVector<partition::BufferId, device::TensorView>& views = views_.emplace_back();
    for (const partition::Buffer& buffer : program.buffers) {
      views.push_back(view_of(buffer, arena_->data()));
    }
    std::vector<Call>& calls = calls_.emplace_back();
    for (const partition::Instruction& instruction : program.instructions) {
      Call& call = calls.emplace_back();
      if (instruction.kind == partition::Instruction::Kind::compute) {
        call.kernel = &device_.kernel(instruction.op->name);
      }
      call.instruction = &instruction;
      call.program = static_cast<std::uint32_t>(calls_.size() - 1);
      call.number = static_cast<std::uint32_t>(calls.size() - 1);
      call.scratch = {arena_->data() + instruction.scratch_offset, instruction.scratch_bytes};
      for (const partition::BufferId id : instruction.inputs) {
        call.inputs.push_back(views[id]);
      }
      for (const partition::BufferId id : instruction.outputs) {
        call.outputs.push_back(views[id]);
      }
      if (instruction.hook) {
        bind_hook(call);
      }
    }
  }
}

Executor::~Executor() = default;

void Executor::bind_hook(Call& call) {
  if (const graph::DType stored = device_.stored(graph::DType::f32); stored != graph::DType::f32) {
    throw Error(ErrorCode::job, fmt::format("the strategy has hooks, which compute in float32, and device {} stores {}",
                                            device_.name(), to_string(stored)));
  }
  for (const partition::Region& region : call.instruction->hook->buffers) {
    call.hook_buffers.push_back(address_of(call.program, region.buffer));
    call.hook_elements.push_back(static_cast<std::uint64_t>(region.elements));
  }
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

void Executor::bind(Communicator& communicator) {
  communicator_ = &communicator;
  for (std::size_t p = 0; p < programs_.programs.size(); ++p) {
    bind_transfers(p);
  }
}

std::byte* Executor::address_of(std::size_t program, partition::BufferId buffer) const {
  return buffer.exists() ? static_cast<std::byte*>(views_[program][buffer].data) : nullptr;
}

Communicator::TransferBuffers Executor::buffers_of(std::size_t program, const partition::Transfer& transfer) const {
  const std::size_t bytes = graph::element_bytes(transfer.dtype);
  const auto address = [&](const partition::Region& region) {
    std::byte* buffer = address_of(program, region.buffer);
    return buffer == nullptr ? nullptr : buffer + static_cast<std::size_t>(region.first) * bytes;
  };
  Communicator::TransferBuffers buffers{.send = address(transfer.send),
                                        .send_bytes = static_cast<std::uint64_t>(transfer.send.elements) * bytes,
                                        .recv = address(transfer.recv),
                                        .recv_bytes = static_cast<std::uint64_t>(transfer.recv.elements) * bytes,
                                        .scratch = address_of(program, transfer.scratch)};
  if (transfer.scratch.exists()) {
    buffers.scratch_bytes = programs_.programs[program].buffers[transfer.scratch].bytes;
  }
  return buffers;
}

void Executor::bind_transfers(std::size_t p) {
  const partition::Program& program = programs_.programs[p];
  const mesh::Coordinates at = mesh::coordinates_of(programs_.mesh, programs_.rank);
  IdVector<partition::TransferId, Communicator::Handle> handles(program.transfers.size());
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const partition::Instruction& instruction = program.instructions[i];
    if (instruction.kind == partition::Instruction::Kind::start) {
      const partition::Transfer& transfer = program.transfers[instruction.transfer];
      const bool waited_at_once =
          i + 1 < program.instructions.size() && program.instructions[i + 1].transfer == instruction.transfer;
      const Communicator::TransferBuffers buffers = buffers_of(p, transfer);
      handles[instruction.transfer] = communicator_->prepare(transfer, buffers, waited_at_once);
      calls_[p][i].sent = &sent_[programs_.mesh.axes[transfer.axis].name][partition::to_string(transfer.collective)];
      calls_[p][i].bytes = partition::sent_bytes(transfer, at[transfer.axis], programs_.mesh.size(transfer.axis));
    }
    if (instruction.transfer.exists()) {
      calls_[p][i].transfer = handles[instruction.transfer];
    }
  }
}

std::size_t Executor::find(std::string_view function, std::int64_t rows, bool last) const {
  return static_cast<std::size_t>(&programs_.find(function, rows, last) - programs_.programs.data());
}

std::size_t Executor::find(graph::Role role) const {
  return static_cast<std::size_t>(&programs_.find(role) - programs_.programs.data());
}

namespace {

const partition::Port* find_port(const std::vector<partition::Port>& ports, std::string_view name, std::size_t call) {
  const auto found =
      std::ranges::find_if(ports, [&](const partition::Port& port) { return port.name == name && port.call == call; });
  return found == ports.end() ? nullptr : &*found;
}

[[noreturn]] void refuse_port(const partition::Program& program, std::string_view name) {
  throw Error(ErrorCode::internal, fmt::format("function {} has no input or output '{}'", program.function, name));
}

}  // namespace

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
                                       .threads = threads_};
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

void Executor::note(Call& call, std::int64_t begin, bool failed) noexcept {
  const std::int64_t end = now_in_nanoseconds();
  call.seconds += static_cast<double>(end - begin) * 1e-9;
  ++call.count;
  if (timeline_ != nullptr) {
    Timeline::Span span{
        .program = call.program, .instruction = call.number, .begin = begin, .end = end, .failed = failed};
    if (call.instruction->kind == partition::Instruction::Kind::wait && !failed) {
      const auto times = communicator_->times(call.transfer).value_or(Communicator::Times{});
      span.transfer_begun = times.begun;
      span.transfer_ended = times.ended;
    }
    timeline_->add(span);
  }
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

std::optional<std::string> Executor::bad_result(std::size_t program, const Call& call) const {
  const partition::Program& at = programs_.programs[program];
  if (call.instruction->kind == partition::Instruction::Kind::wait) {
    return bad_arrival(program, at.transfers[call.instruction->transfer]);
  }
  for (std::size_t o = 0; o < call.outputs.size(); ++o) {
    if (device::has_non_finite(call.outputs[o])) {
      return fmt::format("{} (op {}, function {})", at.buffers[call.instruction->outputs[o]].name,
                         call.instruction->op->name, at.function);
    }
  }
  return std::nullopt;
}

/// A bucket's elements are those of several states.
std::optional<std::string> Executor::bad_arrival(std::size_t program, const partition::Transfer& transfer) const {
  const partition::Program& at = programs_.programs[program];
  const partition::BufferId buffer = transfer.recv.buffer;
  if (!buffer.exists()) {
    return std::nullopt;
  }
  const partition::Buffer& received = at.buffers[buffer];
  const std::uint64_t bytes = static_cast<std::uint64_t>(transfer.recv.elements) * graph::element_bytes(transfer.dtype);
  const auto bad = [&](const device::TensorView& view) { return device::has_non_finite(view); };
  const auto name = [&](const partition::Buffer& buffer) {
    return fmt::format("{} ({} over {}, function {})", buffer.name, partition::to_string(transfer.collective),
                       programs_.mesh.axes[transfer.axis].name, at.function);
  };
  if (buffer >= partition::buffer_of(programs_.states.next())) {
    return bad(views_[program][buffer]) ? std::optional(name(received)) : std::nullopt;
  }
  for (const graph::StateId s : programs_.states.ids()) {
    const partition::Buffer& state = programs_.states[s];
    if (state.offset >= received.offset && state.offset < received.offset + bytes && bad(finalized_[s])) {
      return name(state);
    }
  }
  return std::nullopt;
}

namespace {

/// Instruction numbers of different stages are not comparable. But stages have no layers in common, except that a
/// received value has the layer of its origin.
BadResult::Order order_of(const partition::Program& program, const partition::Instruction& instruction,
                          std::uint32_t number) noexcept {
  const bool forward = instruction.phase == graph::Phase::forward;
  const bool received = instruction.transfer.exists() &&
                        program.transfers[instruction.transfer].collective == partition::Collective::receive;
  return {static_cast<std::int32_t>(instruction.call), static_cast<std::int32_t>(instruction.phase),
          forward ? instruction.layer : -instruction.layer, received ? 1 : 0, static_cast<std::int32_t>(number)};
}

}  // namespace

/// A schedule may run a later microbatch's forward before an earlier one's backward. Data that is only moved was
/// checked where it was made.
std::optional<BadResult> Executor::run_checked(std::size_t program, std::span<const device::Scalars> scalars) {
  std::optional<BadResult> first;
  for (Call& call : calls_[program]) {
    execute(call, scalars);
    const BadResult::Order order = order_of(programs_.programs[program], *call.instruction, call.number);
    if (call.instruction->kind == partition::Instruction::Kind::move || (first && first->order <= order)) {
      continue;
    }
    if (std::optional<std::string> name = bad_result(program, call)) {
      first = {.name = std::move(*name), .order = order};
    }
  }
  return first;
}

void Executor::start_profile() {
  profiling_ = true;
  timed_ = true;
}

void Executor::record(Timeline* timeline) {
  timeline_ = timeline;
  timed_ = profiling_ || timeline != nullptr;
}

std::vector<OpTime> Executor::profile() const {
  std::map<std::pair<std::string, std::string>, OpTime> sums;
  for (std::size_t p = 0; p < calls_.size(); ++p) {
    for (const Call& call : calls_[p]) {
      const std::string& function = programs_.programs[p].function;
      OpTime& sum = sums[{function, call.instruction->op->name}];
      sum.function = function;
      sum.op = call.instruction->op->name;
      sum.calls += call.count;
      sum.seconds += call.seconds;
      sum.flops += call.instruction->flops * call.count;
    }
  }
  std::vector<OpTime> times;
  for (auto& [key, time] : sums) {
    times.push_back(std::move(time));
  }
  std::sort(times.begin(), times.end(), [](const OpTime& a, const OpTime& b) { return a.seconds > b.seconds; });
  return times;
}

}  // namespace shardrun::runtime
