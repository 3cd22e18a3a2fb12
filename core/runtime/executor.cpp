#include "core/runtime/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/base/error.h"
#include "core/partition/agreements.h"
#include "core/runtime/queued.h"
#include "plugins/loader/hooks.h"

namespace shardrun::runtime {
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
  if (hook.copy) {
    constexpr std::size_t element_bytes = 4;  // float32 or i32
    std::memcpy(call.hook_buffers[hook.copy->to], call.hook_buffers[hook.copy->from],
                call.hook_elements[hook.copy->from] * element_bytes);
    return;
  }
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
  if (call.is_fused && !apart_) {
    return;
  }
  const partition::Accumulate mode = call.instruction->accumulate;
  const bool accumulate = mode == partition::Accumulate::always ||
                          (mode == partition::Accumulate::after_first && !scalars.first_microbatch);
  queue_->run(call.fused == nullptr || apart_ ? *call.kernel : *call.fused, accumulate, scalars);
}

void Executor::move(const Call& call) {
  const device::TensorView& from = views_[call.program][call.instruction->inputs[0]];
  const device::TensorView& to = views_[call.program][call.instruction->outputs[0]];
  for (const partition::Copy& copy : call.instruction->copies) {
    queue_->copy({.from = from.address_of(copy.from),
                  .to = to.address_of(copy.to),
                  .element_bytes = graph::element_bytes(from.dtype),
                  .shape = copy.shape,
                  .from_strides = copy.from_strides,
                  .to_strides = copy.to_strides});
  }
}

/// Waits until the host can use the instruction's buffers: earlier work is done, and `call.before` is copied. Copies of
/// earlier transfers are then done, too, so transfers can overwrite the staging buffers of these.
void Executor::copy_before(const Call& call) {
  if (second_ == nullptr) {
    queue_->finish();
    return;
  }
  second_->wait(queue_->record());
  for (const Copied& copy : call.before) {
    second_->read(copy.in_arena, copy.staged);
  }
  second_->finish();
}

/// Makes later instructions wait for the copies. The host does not wait.
void Executor::copy_after(const Call& call) {
  if (call.after.empty()) {
    return;
  }
  for (const Copied& copy : call.after) {
    second_->write(copy.staged, copy.in_arena);
  }
  queue_->wait(second_->record());
}

partition::SentBytes Executor::sent() const {
  partition::SentBytes sum;
  for (const partition::SentBytes& of_program : sent_) {
    for (const auto& [axis, collectives] : of_program) {
      for (const auto& [collective, bytes] : collectives) {
        sum[axis][collective] += bytes;
      }
    }
  }
  return sum;
}

std::uint64_t Executor::touched_bytes() const {
  return arena_->touched_bytes() + (staging_ == nullptr ? 0 : staging_->touched_bytes());
}

Executor::Queued::Queued(QueuedTransfers& of, const device::DeviceApart& device, device::Queue& kernels_in,
                         device::Queue& second, std::size_t waits)
    : transfers(of), staged(second), direct(second, device), kernels(kernels_in, device) {
  joined.reserve(waits);
}

void Executor::start(Call& call) {
  *call.sent += call.bytes;
  if (queued_ == nullptr) {
    copy_before(call);
    communicator_->start(call.transfer);
    return;
  }
  while (call.waiter->joined) {
    finish_first_transfer();
  }
  second_->wait(queue_->record());
  for (const Copied& copy : call.before) {
    second_->read(copy.in_arena, copy.staged);
  }
  queued_->transfers.start(call.transfer, call.is_direct ? queued_->direct : queued_->staged);
}

void Executor::wait(Call& call) {
  if (queued_ == nullptr) {
    communicator_->wait(call.transfer);
    copy_after(call);
    return;
  }
  queue_->stamp(call.waited.begun);
  if (call.is_direct) {
    queued_->transfers.join(call.transfer, queued_->kernels);
  } else {
    queued_->transfers.join(call.transfer, queued_->staged);
    for (const Copied& copy : call.after) {
      second_->write(copy.staged, copy.in_arena);
    }
    queue_->wait(second_->record());  // also if nothing arrives: from here on the sent buffers may be overwritten
  }
  queue_->stamp(call.waited.ended);
  call.step = step_;
  call.passed = queue_->record();
  call.joined = true;
  queued_->joined.push_back(&call);
}

void Executor::finish_first_transfer() const {
  Call& call = *queued_->joined.front();
  queued_->joined.erase(queued_->joined.begin());
  call.joined = false;
  try {
    queue_->finish(call.passed);
  } catch (...) {
    finish_transfer(call);  // first, because kernels may have failed due to its data
    throw;
  }
  finish_transfer(call);
}

void Executor::finish_transfer(const Call& call) const {
  const double exposed = communicator_->exposed_seconds();
  const double hidden = communicator_->hidden_seconds();
  try {
    queued_->transfers.finish(call.transfer, call.waited);
  } catch (const Error& error) {
    throw TransferError(error, call.step);
  }
  if (!programs_.programs[call.program].counts) {
    uncounted_exposed_ += communicator_->exposed_seconds() - exposed;
    uncounted_hidden_ += communicator_->hidden_seconds() - hidden;
  }
}

void Executor::finish_transfers() const {
  while (queued_ != nullptr && !queued_->joined.empty()) {
    finish_first_transfer();
  }
}

void Executor::perform(Call& call, std::span<const device::Scalars> scalars) {
  switch (call.instruction->kind) {
    case partition::Instruction::Kind::compute:
      compute(call, scalars[static_cast<std::size_t>(call.instruction->call)]);
      break;
    case partition::Instruction::Kind::move: move(call); break;
    case partition::Instruction::Kind::hook:
      finish_transfers();
      copy_before(call);
      call_hook(call, scalars.front());
      copy_after(call);
      break;
    case partition::Instruction::Kind::start: start(call); break;
    case partition::Instruction::Kind::wait: wait(call); break;
  }
}

void Executor::execute(Call& call, std::span<const device::Scalars> scalars) {
  if (ends_ && ends_()) {
    throw Error(ErrorCode::aborted, "the call was ended before all of it was computed");
  }
  const auto run = [&] {
    hashes_ == nullptr || call.watches.empty() ? perform(call, scalars) : perform_watched(call, scalars);
  };
  if (!timed_) {
    run();
    return;
  }
  queue_->stamp(call.begin);
  try {
    run();
  } catch (...) {
    queue_->stamp(call.end);
    throw;
  }
  queue_->stamp(call.end);
}

template <typename Run>
void Executor::noting(std::vector<Call>& calls, std::size_t& at, const Run& run) {
  if (!timed_) {
    run();
    return;
  }
  std::size_t first = at;
  const auto note_all = [&] {
    for (; first < at; ++first) {
      note(calls[first], false);
    }
  };
  try {
    run();
    queue_->finish();
    finish_transfers();
  } catch (...) {
    if (queued_ == nullptr) {  // otherwise the queue may wait until other ranks know of the failure
      note_all();
      if (at < calls.size()) {
        note(calls[at], true);
      }
    }
    throw;
  }
  note_all();
}

void Executor::run(std::size_t program, std::span<const device::Scalars> scalars) {
  std::vector<Call>& calls = calls_[program];
  std::size_t at = 0;
  noting(calls, at, [&] {
    for (; at < calls.size(); ++at) {
      execute(calls[at], scalars);
    }
  });
}

void Executor::run_part(std::size_t program, const device::Scalars& scalars, std::size_t first, std::size_t end) {
  std::vector<Call>& calls = calls_[program];
  noting(calls, first, [&] {
    for (; first < end; ++first) {
      execute(calls[first], {&scalars, 1});
    }
  });
}

bool Executor::waits_for_send(const Call& call) const {
  return call.instruction->kind == partition::Instruction::Kind::wait &&
         programs_.programs[call.program].transfers[call.instruction->transfer].collective ==
             partition::Collective::send;
}

void Executor::begin(std::size_t program, const device::Scalars& scalars) {
  finish_sends(program);
  has_sent_[program] = true;
  run_part(program, scalars, 0, programs_.programs[program].head);
}

void Executor::end(std::size_t program) {
  for (std::size_t at = programs_.programs[program].head; at < calls_[program].size(); ++at) {
    if (!waits_for_send(calls_[program][at])) {
      run_part(program, {}, at, at + 1);
    }
  }
}

void Executor::finish_sends(std::size_t program) {
  if (!has_sent_[program]) {
    return;
  }
  has_sent_[program] = false;
  for (std::size_t at = programs_.programs[program].head; at < calls_[program].size(); ++at) {
    if (waits_for_send(calls_[program][at])) {
      run_part(program, {}, at, at + 1);
    }
  }
}

void Executor::finish_sends() {
  for (std::size_t program = 0; program < has_sent_.size(); ++program) {
    finish_sends(program);
  }
}

device::Queue& Executor::queue() const {
  finish_transfers();
  return *queue_;
}

device::HostAccess Executor::host(device::Access access) const {
  if (access == device::Access::read) {
    finish_transfers();
  }
  if (staging_ == nullptr) {
    return {*queue_};
  }
  if (access == device::Access::write) {
    room_ = 1 - room_;
  }
  return {*queue_,
          {staging_->data() + programs_.host_offset + room_ * programs_.host_bytes, programs_.host_bytes},
          input_copies_[room_]};
}

std::span<std::byte> Executor::kept(std::size_t slot) const {
  return {staging_->data() + programs_.late_offset() + slot * partition::late_slot_bytes, partition::late_slot_bytes};
}

void Executor::keep(std::size_t slot, const device::TensorView& tensor) {
  queue_->read(tensor.data, kept(slot).first(tensor.bytes()));
}

void Executor::agree_later(std::size_t program, std::size_t slot, void (*give)(void* argument), void* argument) {
  const device::TensorView values = input(program, partition::agreed_numbers);
  queue_->call(give, argument);
  queue_->write(kept(slot).first(values.bytes()), values.data);
  for (Call& call : calls_[program]) {
    perform(call, {});
  }
  keep(slot, values);
}

void Executor::reach(const device::Event& mark) const {
  while (queued_ != nullptr && !queued_->joined.empty() && queued_->joined.front()->passed.number <= mark.number) {
    finish_first_transfer();
  }
  queue_->finish(mark);
}

device::Guard Executor::guard(graph::StateId loss) const {
  return {.loss = static_cast<const float*>(state(loss).data),
          .held = reinterpret_cast<std::int32_t*>(arena_->data() + programs_.guard_offset.value())};
}

void Executor::agree(std::size_t program, std::span<std::int32_t> numbers) {
  const device::TensorView values = input(program, partition::agreed_numbers);
  device::HostTensor given(host(device::Access::write), values, device::Access::write);
  std::ranges::copy(std::as_bytes(numbers), given.bytes().begin());
  given.store();
  for (Call& call : calls_[program]) {
    perform(call, {});
  }
  const device::HostTensor agreed(host(device::Access::read), values, device::Access::read);
  std::ranges::copy(agreed.bytes(), std::as_writable_bytes(numbers).begin());
}

/// Compares by order, because a schedule may run a later microbatch's forward before an earlier one's backward. Data
/// that is only moved was checked where it was computed.
std::optional<NonFiniteResult> Executor::run_checked(std::size_t program, std::span<const device::Scalars> scalars) {
  std::optional<NonFiniteResult> first;
  std::vector<Call>& calls = calls_[program];
  std::size_t at = 0;
  apart_ = true;
  const std::unique_ptr<bool, void (*)(bool*)> together(&apart_, [](bool* apart) { *apart = false; });
  noting(calls, at, [&] {
    for (; at < calls.size(); ++at) {
      execute(calls[at], scalars);
      finish_transfers();
      check(calls[at], first);
    }
  });
  return first;
}

std::size_t Executor::advance(std::size_t program, std::span<const device::Scalars> scalars, std::size_t at) {
  std::vector<Call>& calls = calls_[program];
  noting(calls, at, [&] {
    for (; at < calls.size(); ++at) {
      Call& call = calls[at];
      const bool is_wait = call.instruction->kind == partition::Instruction::Kind::wait;
      if (is_wait && queued_ == nullptr && !communicator_->test(call.transfer)) {
        return;
      }
      execute(call, scalars);
    }
  });
  return at;
}

}  // namespace shardrun::runtime
