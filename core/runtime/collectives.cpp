#include "core/runtime/collectives.h"

#include <fmt/format.h>
#include <shardrun/transport.h>

#include <algorithm>
#include <string>

#include "core/base/error.h"
#include "core/runtime/device_queue.h"

namespace shardrun::runtime {
namespace {

/// An operation that begins within this time has begun at once: a transport's thread takes some time to wake up, more
/// on a busy machine.
constexpr std::int64_t wake_up_ns = 500'000;

using partition::Collective;
using partition::Transfer;

/// Nanoseconds by which an operation may exceed its deadline before the transport is reported as ignoring it.
constexpr std::int64_t grace_ns = 5'000'000'000;

/// A group's name in the flight record. Operations are counted by group, and the links between two stages have the same
/// members as their axis, so they need names of their own.
std::string recorded_name(const std::string& axis, const partition::Link& link) {
  return link == partition::Link{} ? axis
                                   : fmt::format("{}/{}-{}/{}", axis, link.from.number(), link.to.number(),
                                                 link.backward ? "backward" : "forward");
}

bool all_equal(const std::vector<std::int64_t>& counts) {
  return std::all_of(counts.begin(), counts.end(), [&](std::int64_t count) { return count == counts.front(); });
}

std::vector<std::uint64_t> unsigned_counts(const std::vector<std::int64_t>& counts) {
  return {counts.begin(), counts.end()};
}

/// Sets the op's code and counts. For reduce_scatter and all_gather, uses the V form only if counts differ.
void set_opcode(sdk::OpSpec& op, const Transfer& transfer) {
  const auto choose = [&](std::uint32_t even, std::uint32_t uneven, bool is_even) {
    op.opcode = is_even ? even : uneven;
    op.count = is_even ? static_cast<std::uint64_t>(transfer.recv_counts.front()) : 0;
    if (!is_even) {
      op.recv_counts = unsigned_counts(transfer.recv_counts);
    }
  };
  switch (transfer.collective) {
    case Collective::all_reduce:
      op.opcode = SR_OP_ALL_REDUCE;
      op.count = static_cast<std::uint64_t>(transfer.send.elements);
      return;
    case Collective::reduce_scatter:
      return choose(SR_OP_REDUCE_SCATTER, SR_OP_REDUCE_SCATTERV, all_equal(transfer.recv_counts));
    case Collective::all_gather: return choose(SR_OP_ALL_GATHER, SR_OP_ALL_GATHERV, all_equal(transfer.recv_counts));
    case Collective::all_to_all:
    case Collective::halo:
      // Always the V form: that this rank's counts are equal does not mean that the other ranks' are.
      op.opcode = SR_OP_ALL_TO_ALLV;
      op.send_counts = unsigned_counts(transfer.send_counts);
      op.recv_counts = unsigned_counts(transfer.recv_counts);
      return;
    case Collective::send:
    case Collective::receive: {
      // The sender is the first member of the link's group.
      const bool sends = transfer.collective == Collective::send;
      op.opcode = sends ? SR_OP_SEND : SR_OP_RECV;
      op.peer = sends ? 1 : 0;
      op.count = static_cast<std::uint64_t>(sends ? transfer.send.elements : transfer.recv.elements);
      return;
    }
  }
}

/// `unit`: the unit of the device (the GPU) that has the memory.
sdk::OpSpec request_of(const Transfer& transfer, const Communicator::TransferBuffers& buffers, const TransportSet& set,
                       std::uint32_t unit) {
  sdk::OpSpec op;
  const auto buffer = [&](void* data, std::uint64_t bytes) {
    return transfer.is_direct ? sdk::Buffer{.data = data, .bytes = bytes, .kind = set.device_memory, .device = unit}
                              : sdk::Buffer{.data = data, .bytes = bytes};
  };
  // Only sums need an order: the largest and the smallest are the same in any order.
  op.flags = set.in_order && transfer.reduction == Reduction::sum ? SR_OP_FLAG_IN_ORDER : 0;
  op.dtype = transport_type(transfer.dtype);
  op.reduction = transfer.reduction == Reduction::sum   ? SR_REDUCE_SUM
                 : transfer.reduction == Reduction::max ? SR_REDUCE_MAX
                                                        : SR_REDUCE_MIN;
  if (transfer.collective != Collective::receive) {
    op.send = buffer(buffers.send, buffers.send_bytes);
  }
  if (transfer.collective != Collective::send) {
    op.recv = buffer(buffers.recv, buffers.recv_bytes);
  }
  if (buffers.scratch != nullptr) {
    op.scratch = buffer(buffers.scratch, buffers.scratch_bytes);
  }
  op.label = fmt::format("{} of {}", partition::to_string(transfer.collective), transfer.name);
  set_opcode(op, transfer);
  return op;
}

/// The request for a transfer whose memory has no addresses yet.
sdk::OpSpec planned_request(const Transfer& transfer, const TransportSet& set) {
  const std::size_t element_bytes = graph::element_bytes(transfer.dtype);
  return request_of(transfer,
                    {.send_bytes = static_cast<std::uint64_t>(transfer.send.elements) * element_bytes,
                     .recv_bytes = static_cast<std::uint64_t>(transfer.recv.elements) * element_bytes},
                    set, 0);
}

}  // namespace

std::uint32_t transport_type(graph::DType dtype) noexcept {
  switch (dtype) {
    case graph::DType::f32: return SR_DTYPE_F32;
    case graph::DType::bf16: return SR_DTYPE_BF16;
    case graph::DType::f16: return SR_DTYPE_F16;
    case graph::DType::f64: return SR_DTYPE_F64;
    case graph::DType::i32: return SR_DTYPE_I32;
    case graph::DType::i64: return SR_DTYPE_I64;
    case graph::DType::u8:
    case graph::DType::i8: return SR_DTYPE_U8;  // such bytes are only moved
  }
  return 0;
}

partition::TransferScratch scratch_of(const TransportSet& set) {
  return [&set](const Transfer& transfer, std::int64_t members) {
    const plugins::Transport& transport = set.transports[set.of_axis[transfer.axis]];
    return transport.query(planned_request(transfer, set), static_cast<std::uint32_t>(members)).scratch_bytes;
  };
}

partition::TransferChecks checks_of(const TransportSet& set) {
  return [&set](const Transfer& transfer, std::int64_t member, std::int64_t members) {
    return plugins::hash_bytes(planned_request(transfer, set), static_cast<std::uint32_t>(member),
                               static_cast<std::uint32_t>(members));
  };
}

bool moves_memory_of(const device::Device& device, const sdk::Props& props) {
  const device::DeviceApart* const apart = device::apart(device);
  const DeviceKinds kinds = apart == nullptr ? DeviceKinds{} : kinds_of(*apart);
  return apart != nullptr && props.moves(kinds.memory) && props.takes(kinds.queue);
}

Collectives::Collectives(TransportSet& set, const partition::Partition& partition, std::int64_t rank,
                         const device::Device& device, const TransportMemory& memory, double timeout_s,
                         FlightRecorder& record)
    : set_(set),
      mesh_(partition.placements.mesh),
      timeout_ns_(static_cast<std::int64_t>(timeout_s * 1e9)),
      unit_(device::apart(device) == nullptr ? 0 : static_cast<std::uint32_t>(device::apart(device)->unit())),
      record_(record) {
  for (plugins::Transport& transport : set.transports) {
    const bool is_direct = memory.of_device != nullptr && moves_memory_of(device, transport.props());
    const device::Memory& used = is_direct ? *memory.of_device : *memory.host;
    registrations_.push_back(is_direct
                                 ? transport.register_memory(used.data(), used.bytes(), -1, set.device_memory, unit_)
                                 : transport.register_memory(used.data(), used.bytes(), used.descriptor()));
  }
  const std::vector<partition::Link> links = partition::links_of(partition);
  groups_.reserve(mesh_.axes.size() + links.size());
  for (const mesh::AxisId axis : mesh_.axes.ids()) {
    if (mesh_.size(axis) > 1) {
      add_group(axis, {}, axis.index() + 1, mesh::line_through(mesh_, axis, rank), rank, mesh_.axes[axis].name);
    }
  }
  for (std::size_t l = 0; l < links.size(); ++l) {
    const mesh::AxisId axis = partition.pipeline.axis;
    const std::vector<std::int64_t> line = mesh::line_through(mesh_, axis, rank);
    const std::vector<std::int64_t> members = {line[links[l].from.index()], line[links[l].to.index()]};
    if (std::find(members.begin(), members.end(), rank) != members.end()) {
      add_group(axis, links[l], mesh_.axes.size() + 1 + l, members, rank, mesh_.axes[axis].name);
    }
  }
}

void Collectives::add_group(mesh::AxisId axis, const partition::Link& link, std::uint64_t number,
                            const std::vector<std::int64_t>& members, std::int64_t rank, const std::string& name) {
  const auto place = std::find(members.begin(), members.end(), rank) - members.begin();
  plugins::TransportGroup group =
      set_.transports[set_.of_axis[axis]].group({.rank = static_cast<std::uint32_t>(place),
                                                 .members = {members.begin(), members.end()},
                                                 .name = name,
                                                 .id = (number << 32U) | static_cast<std::uint64_t>(members.front()),
                                                 .deadline = sdk::Deadline::from_border(deadline())});
  const std::uint32_t recorded = record_.add_group(recorded_name(name, link), {members.begin(), members.end()});
  const std::lock_guard lock(mutex_);
  groups_.push_back({axis, link, std::move(group), recorded});
}

template <typename Act>
void Collectives::start_by(Op& op, const Act& act) {
  record_.started(op.recorded);
  try {
    act();
  } catch (...) {
    record_.ended(op.recorded, true);
    throw;
  }
}

void Collectives::finish(Op& op) {
  record_.waited_for(op.recorded);
  try {
    if (!op.op.wait(deadline() + grace_ns)) {
      throw Error(ErrorCode::timeout, "an operation is past its deadline, and the transport has not ended it");
    }
  } catch (...) {
    record_.ended(op.recorded, true);
    throw;
  }
  record_.ended(op.recorded, false);
  op.times.reset();
  op.starved = 0;
  if (const std::optional<sdk::OpTimes> times = op.op.times()) {
    if (!starved_before_) {
      starved_before_ = core_wait_.nanoseconds().value_or(0);
    }
    op.times = Times{times->begun, times->ended};
    op.starved = times->starved;
    yielded_ns_ += times->yielded;
  }
}

std::int64_t Collectives::deadline() const noexcept { return plugins::transport_clock() + timeout_ns_; }

Collectives::Group& Collectives::group_of(const Transfer& transfer) {
  return *std::find_if(groups_.begin(), groups_.end(),
                       [&](const Group& group) { return group.axis == transfer.axis && group.link == transfer.link; });
}

Communicator::Handle Collectives::prepare(const Transfer& transfer, const TransferBuffers& buffers,
                                          bool waited_at_once) {
  Group& group = group_of(transfer);
  sdk::OpSpec op = request_of(transfer, buffers, set_, unit_);
  op.id = ++group.ops;
  op.flags |= waited_at_once ? SR_OP_FLAG_BLOCKING : 0;
  const std::uint64_t registration = registrations_[set_.of_axis[transfer.axis]];
  for (std::optional<sdk::Buffer>* buffer : {&op.send, &op.recv, &op.scratch}) {
    if (*buffer) {
      (*buffer)->registration = registration;
    }
  }
  ops_.push_back({group.group.prepare({op}, deadline()), static_cast<std::size_t>(&group - groups_.data()),
                  record_.add_op(group.recorded, std::max(buffers.send_bytes, buffers.recv_bytes), op.label)});
  return ops_.size() - 1;
}

void Collectives::start(Handle transfer) { start(ops_[transfer]); }

void Collectives::start(Op& op) {
  const std::int64_t begin = plugins::transport_clock();
  start_by(op, [&] { op.op.start(deadline()); });
  exposed_ns_ += plugins::transport_clock() - begin;
  op.started = begin;
  op.exposed_before = exposed_ns_;
}

bool Collectives::test(Handle transfer) { return ops_[transfer].op.test(); }

void Collectives::wait(Handle transfer) { wait(ops_[transfer]); }

void Collectives::wait(Op& op) {
  const std::int64_t waited_from = plugins::transport_clock();
  count_starved(waited_from, false);
  finish(op);
  if (op.times) {
    const std::int64_t under_way = std::min(op.times->ended, waited_from) - op.times->begun;
    const std::int64_t waited_for_others = exposed_ns_ - op.exposed_before;
    hidden_ns_ += std::max<std::int64_t>(0, under_way - waited_for_others);
    count_late(op);
  }
  const std::int64_t now = plugins::transport_clock();
  exposed_ns_ += now - waited_from;
  count_starved(now, true);
  starved_.transports += std::min(op.starved, now - waited_from);
}

void Collectives::count_starved(std::int64_t now, bool waited) noexcept {
  constexpr std::int64_t least = 1'000'000;  // in less time, the thread cannot have lacked a core for long
  if (starved_before_ && now - starved_.looked >= least) {
    starved_.looked = now;
    const std::int64_t before = std::exchange(
        starved_.own, std::max(starved_.own, core_wait_.nanoseconds().value_or(0) - *starved_before_ - yielded_ns_));
    starved_.own_in_waits += waited ? starved_.own - before : 0;
  }
}

void Collectives::count_late(const Op& op) {
  std::int64_t& ended_before = groups_[op.group].ended;
  const std::int64_t late = op.times->begun - std::max(op.started, ended_before) - op.starved;
  late_ns_ += late > wake_up_ns ? late : 0;
  ended_before = std::max(ended_before, op.times->ended);
}

Starved Collectives::starved() noexcept {
  count_starved(plugins::transport_clock(), false);
  const std::int64_t waiting = starved_.own_in_waits + starved_.transports;
  return {static_cast<double>(starved_.own + starved_.transports) * 1e-9, static_cast<double>(waiting) * 1e-9};
}

void Collectives::start(Handle transfer, const plugins::TransportQueue& queue) {
  Op& op = ops_[transfer];
  start_by(op, [&] { op.op.enqueue(queue, timeout_ns_); });
}

void Collectives::join(Handle transfer, const plugins::TransportQueue& queue) { ops_[transfer].op.join(queue); }

void Collectives::finish(Handle transfer, const Times& waited) {
  Op& op = ops_[transfer];
  finish(op);
  waits_.add(waited);
  exposed_ns_ += waited.ended - waited.begun;
  hidden_ns_ += op.times ? waits_.outside(*op.times) : 0;
}

std::size_t Collectives::group_along(mesh::AxisId axis) const {
  const auto found = std::ranges::find_if(
      groups_, [&](const Group& group) { return group.axis == axis && group.link == partition::Link{}; });
  return static_cast<std::size_t>(found - groups_.begin());
}

std::size_t Collectives::connect(const std::string& name, std::uint64_t id, const std::vector<std::int64_t>& members,
                                 std::int64_t rank) {
  constexpr std::uint64_t first_number = std::uint64_t{1} << 30U;  // above the numbers of axes and links
  add_group(mesh::AxisId(0), {}, first_number + id, members, rank, name);
  return groups_.size() - 1;
}

Communicator::Handle Collectives::start_once(std::size_t group, sdk::OpSpec op) {
  Group& of = groups_[group];
  op.id = ++of.ops;
  op.flags |= set_.in_order && op.reduction == SR_REDUCE_SUM ? SR_OP_FLAG_IN_ORDER : 0;
  const std::uint64_t bytes = std::max(op.send ? op.send->bytes : 0, op.recv ? op.recv->bytes : 0);
  std::vector<std::uint32_t>& numbers = recorded_once_[{of.recorded, bytes, op.label}];
  if (numbers.empty()) {
    numbers.push_back(record_.add_op(of.recorded, bytes, op.label));
  }
  const std::int64_t begin = plugins::transport_clock();
  Op prepared{.op = of.group.prepare({op}, deadline()), .group = group, .recorded = numbers.back(), .reuse = &numbers};
  exposed_ns_ += plugins::transport_clock() - begin;
  numbers.pop_back();
  start(prepared);
  once_.emplace(++next_once_, std::move(prepared));
  return next_once_;
}

std::optional<Communicator::Times> Collectives::finish_once(Handle handle) {
  Op& op = once_.at(handle);
  wait(op);
  op.reuse->push_back(op.recorded);
  const std::optional<Times> times = op.times;
  once_.erase(handle);
  return times;
}

void Collectives::abort(const std::string& reason) noexcept {
  const std::lock_guard lock(mutex_);
  for (Group& each : groups_) {
    each.group.abort(reason);
  }
}

}  // namespace shardrun::runtime
