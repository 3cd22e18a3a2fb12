#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/device/apart.h"
#include "core/device/host_memory.h"
#include "core/runtime/executor.h"
#include "core/runtime/queued.h"
#include "plugins/loader/hooks.h"

namespace shardrun::runtime {
namespace {

device::TensorView view_of(const partition::Buffer& buffer, std::byte* memory) {
  device::TensorView view;
  view.data = memory + buffer.offset;
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

}  // namespace

Executor::Executor(const partition::Programs& programs, const device::Device& device, const plugins::Hooks* hooks)
    : programs_(programs),
      device_(device),
      hooks_(hooks),
      threads_(programs.threads),
      arena_(device.allocate(programs.arena_bytes)),
      queue_(device.open_queue(threads_)),
      sent_(programs.programs.size()) {
  if (const device::DeviceApart* const apart = device::apart(device)) {
    staging_ = std::make_shared<const device::HostMemory>(programs.staging_bytes);
    pinned_ = device.pin({staging_->data(), static_cast<std::size_t>(staging_->bytes())});
    // Touches the host's two areas and the late slots, which are used from the start (see Programs).
    std::memset(staging_->data() + programs.host_offset, 0, programs.staging_bytes - programs.host_offset);
    second_ = apart->open_transfer_queue(threads_);
  }
  if (programs.guard_offset) {
    queue_->fill(
        {.data = arena_->data() + *programs.guard_offset, .dtype = graph::DType::i32, .rounded = graph::DType::i32}, 0);
  }
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
      views.push_back(view_of(buffer, (buffer.is_staged ? *staging_ : *arena_).data()));
    }
    std::vector<Call>& calls = calls_.emplace_back();
    auto watch = program.watches.begin();
    for (const partition::Instruction& instruction : program.instructions) {
      Call& call = calls.emplace_back();
      if (instruction.kind == partition::Instruction::Kind::compute) {
        call.kernel = prepare(program, instruction, views);
      }
      call.instruction = &instruction;
      call.program = static_cast<std::uint32_t>(calls_.size() - 1);
      call.number = static_cast<std::uint32_t>(calls.size() - 1);
      const auto first = watch;
      while (watch != program.watches.end() && watch->instruction == static_cast<std::int32_t>(call.number)) {
        ++watch;
      }
      call.watches = {first, watch};
      if (instruction.hook) {
        bind_hook(call);
      }
    }
    fuse(calls);
  }
}

/// Offers the device the kernels of instructions that directly follow one another in the same call. Transfers, moves,
/// hooks, and instructions that accumulate or are watched are not fused.
void Executor::fuse(std::vector<Call>& calls) const {
  const auto may_be_fused = [](const Call& call) {
    return call.kernel != nullptr && call.watches.empty() &&
           call.instruction->accumulate == partition::Accumulate::never;
  };
  for (std::size_t first = 0, next = 1; next < calls.size(); ++next) {
    Call& from = calls[first];
    if (may_be_fused(from) && may_be_fused(calls[next]) && from.instruction->call == calls[next].instruction->call) {
      const device::PreparedKernel& so_far = from.fused == nullptr ? *from.kernel : *from.fused;
      if (auto fused = device_.fuse(so_far, *calls[next].kernel)) {
        from.fused = std::move(fused);
        calls[next].is_fused = true;
        continue;
      }
    }
    first = next;
  }
}

void Executor::abort_transfers(const std::string& reason) const noexcept {
  if (queued_ != nullptr) {
    queued_->transfers.abort(reason);
  }
}

Executor::~Executor() {
  if (std::uncaught_exceptions() > exceptions_) {
    abort_transfers("this rank has failed");
  }
  if (queued_ != nullptr) {
    queued_->transfers.free_all();  // the queues, which are destroyed next, may wait for them
  }
}

std::unique_ptr<const device::PreparedKernel> Executor::prepare(
    const partition::Program& program, const partition::Instruction& instruction,
    const IdVector<partition::BufferId, device::TensorView>& views) const {
  const auto views_of = [&](const std::vector<partition::BufferId>& buffers) {
    std::vector<device::TensorView> of_buffers;
    for (const partition::BufferId id : buffers) {
      of_buffers.push_back(views[id]);
    }
    return of_buffers;
  };
  return device_.prepare(
      device_.kernel(instruction.op->name), instruction.attributes, views_of(instruction.inputs),
      views_of(instruction.outputs), {arena_->data() + instruction.scratch_offset, instruction.scratch_bytes},
      instruction.outputs.empty() ? instruction.name : program.buffers[instruction.outputs.front()].name);
}

void Executor::bind_hook(Call& call) {
  if (const graph::DType stored = device_.stored(graph::DType::f32); stored != graph::DType::f32) {
    throw Error(ErrorCode::job, fmt::format("the strategy has hooks, which compute in float32, and device {} stores {}",
                                            device_.name(), to_string(stored)));
  }
  const partition::HookCall& hook = *call.instruction->hook;
  for (std::size_t i = 0; i < hook.buffers.size(); ++i) {
    const partition::Region& region = hook.buffers[i];
    std::byte* data = memory_of(call.program, region).data();
    if (!hook.staged.empty()) {
      call.before.push_back(copied(call.program, region, hook.staged[i]));
      data = call.before.back().staged.data();
    }
    call.hook_buffers.push_back(data);
    call.hook_elements.push_back(static_cast<std::uint64_t>(region.elements));
  }
  call.after = call.before;
}

void Executor::bind(Communicator& communicator) {
  communicator_ = &communicator;
  has_sent_.assign(programs_.programs.size(), false);
  std::size_t transfers = 0;
  for (std::size_t p = 0; p < programs_.programs.size(); ++p) {
    bind_transfers(p);
    transfers += programs_.programs[p].transfers.size();
  }
  if (QueuedTransfers* const queued = communicator.queued(); queued != nullptr && second_ != nullptr) {
    queued_ = std::make_unique<Queued>(*queued, *device::apart(device_), *queue_, *second_, transfers);
  }
}

std::span<std::byte> Executor::memory_of(std::size_t program, const partition::Region& region) const {
  if (!region.buffer.exists()) {
    return {};
  }
  const device::TensorView& buffer = views_[program][region.buffer];
  return {buffer.address_of(region.first), buffer.address_of(region.first + region.elements)};
}

Executor::Copied Executor::copied(std::size_t program, const partition::Region& region,
                                  const partition::Staged& staged) const {
  const std::span<std::byte> in_arena = memory_of(program, region);
  std::byte* const copy = views_[program][staged.buffer].address_of(static_cast<std::int64_t>(staged.offset));
  return {in_arena.data(), {in_arena.data() == nullptr ? nullptr : copy, in_arena.size()}};
}

Communicator::TransferBuffers Executor::buffers_of(std::size_t program, const partition::Transfer& transfer) const {
  std::span<std::byte> send = memory_of(program, transfer.send);
  std::span<std::byte> recv = memory_of(program, transfer.recv);
  if (!transfer.staged.empty()) {
    send = copied(program, transfer.send, transfer.staged[0]).staged;
    recv = copied(program, transfer.recv, transfer.staged[1]).staged;
  }
  Communicator::TransferBuffers buffers{
      .send = send.data(), .send_bytes = send.size(), .recv = recv.data(), .recv_bytes = recv.size()};
  if (transfer.scratch.exists()) {
    buffers.scratch = views_[program][transfer.scratch].data;
    buffers.scratch_bytes = programs_.programs[program].buffers[transfer.scratch].bytes;
  }
  return buffers;
}

/// Sets which memory the start of a transfer copies to staging memory, or its wait copies back.
void Executor::bind_copies(Call& call, const partition::Transfer& transfer) {
  if (transfer.staged.empty()) {
    return;
  }
  const bool starts = call.instruction->kind == partition::Instruction::Kind::start;
  const partition::Region& region = starts ? transfer.send : transfer.recv;
  if (region.elements > 0) {
    std::vector<Copied>& copies = starts ? call.before : call.after;
    copies.push_back(copied(call.program, region, transfer.staged[starts ? 0 : 1]));
  }
}

void Executor::bind_transfers(std::size_t p) {
  const partition::Program& program = programs_.programs[p];
  const mesh::Coordinates at = mesh::coordinates_of(programs_.mesh, programs_.rank);
  IdVector<partition::TransferId, Communicator::Handle> handles(program.transfers.size());
  IdVector<partition::TransferId, Call*> starts(program.transfers.size());
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const partition::Instruction& instruction = program.instructions[i];
    if (instruction.kind == partition::Instruction::Kind::start) {
      const partition::Transfer& transfer = program.transfers[instruction.transfer];
      const bool waited_at_once =
          i + 1 < program.instructions.size() && program.instructions[i + 1].transfer == instruction.transfer;
      const Communicator::TransferBuffers buffers = buffers_of(p, transfer);
      handles[instruction.transfer] = communicator_->prepare(transfer, buffers, waited_at_once);
      calls_[p][i].sent =
          program.counts ? &sent_[p][programs_.mesh.axes[transfer.axis].name][partition::to_string(transfer.collective)]
                         : &uncounted_;
      calls_[p][i].bytes = partition::sent_bytes(transfer, at[transfer.axis], programs_.mesh.size(transfer.axis));
    }
    if (instruction.transfer.exists()) {
      Call& call = calls_[p][i];
      call.transfer = handles[instruction.transfer];
      call.is_direct = program.transfers[instruction.transfer].is_direct;
      bind_copies(call, program.transfers[instruction.transfer]);
      if (instruction.kind == partition::Instruction::Kind::start) {
        starts[instruction.transfer] = &call;
      } else {
        starts[instruction.transfer]->waiter = &call;
      }
    }
  }
}

}  // namespace shardrun::runtime
