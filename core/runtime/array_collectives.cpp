#include "core/runtime/array_collectives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <shardrun/engine.h>
#include <shardrun/transport.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "core/base/error.h"

namespace shardrun::runtime {
namespace {

using plugins::ArrayView;
using plugins::MakeArray;

enum CallKind : std::uint32_t {
  is_barrier,
  is_all_gather,
  is_all_reduce,
  is_reduce_scatter,
  is_all_to_all,
  is_broadcast
};

/// Names of reductions, by the number SR_RANKS_... of each.
constexpr std::array<std::string_view, 5> reduction_names = {"none", "sum", "product", "min", "max"};

constexpr std::array<std::string_view, 6> call_names = {"barrier",        "all_gather", "all_reduce",
                                                        "reduce_scatter", "all_to_all", "broadcast"};

[[noreturn]] void refuse_call(std::string message) { throw Error(ErrorCode::plugin, std::move(message)); }

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

const char* element_name(std::uint32_t element) noexcept { return to_string(ArrayView{.element = element}.dtype()); }

sdk::Buffer buffer_of(const void* data, std::uint64_t bytes) {
  return {.data = const_cast<void*>(data), .bytes = bytes};  // not changed: it is only sent
}

void require_axis_of(const ArrayView& array, std::uint32_t axis) {
  if (axis >= array.shape.size()) {
    refuse_call(fmt::format("there is no axis {} in an array {}, whose axes are counted from 0",
                            static_cast<std::int32_t>(axis), shape_text(array.shape)));
  }
}

std::uint32_t checked_reduction(std::uint32_t reduction) {
  switch (reduction) {
    case SR_RANKS_SUM: return SR_REDUCE_SUM;
    case SR_RANKS_PRODUCT: return SR_REDUCE_PRODUCT;
    case SR_RANKS_MIN: return SR_REDUCE_MIN;
    case SR_RANKS_MAX: return SR_REDUCE_MAX;
    default: refuse_call(fmt::format("there is no reduction {}, expected sum, product, min or max", reduction));
  }
}

void copy_array(const ArrayView& from, const MakeArray& make) {
  void* const to = make({.element = from.element, .shape = from.shape});
  if (from.elements() > 0) {
    std::memcpy(to, from.address, from.bytes());
  }
}

}  // namespace

ArrayCollectives::ArrayCollectives(Collectives* collectives, std::uint32_t rank, std::uint32_t world_size,
                                   bool messages)
    : collectives_(collectives), rank_(rank), world_size_(world_size) {
  if (collectives_ == nullptr) {
    return;
  }
  group_ = collectives_->group_along(mesh::AxisId(0));
  for (std::uint32_t from = 0; from < world_size && messages; ++from) {
    for (std::uint32_t to = 0; to < world_size; ++to) {
      if (from != to && (rank == from || rank == to)) {
        links_[{rank == from ? to : from, rank == from}].group = collectives_->connect(
            fmt::format("{} to {}", from, to), std::uint64_t{from} * world_size + to + 1, {from, to}, rank);
      }
    }
  }
}

void ArrayCollectives::end() noexcept {
  if (collectives_ != nullptr && collectives_->has_once()) {
    collectives_->abort("the engine has ended with operations under way");
    collectives_->drop_once();
  }
}

ArrayCollectives::Facts ArrayCollectives::facts_of(std::uint32_t call, const ArrayView& array) {
  Facts facts{.call = call, .element = array.element, .dimensions = static_cast<std::uint32_t>(array.shape.size())};
  std::ranges::copy(array.shape, facts.shape.begin());
  return facts;
}

std::vector<std::int64_t> ArrayCollectives::shape_of(const Facts& facts) {
  return {facts.shape.begin(), facts.shape.begin() + facts.dimensions};
}

/// Runs an op to its end. After an error, ends everything, because the transport may still use buffers that the caller
/// is about to free.
void ArrayCollectives::run(sdk::OpSpec op) {
  op.flags = SR_OP_FLAG_BLOCKING;
  try {
    finish(start(group_, std::move(op), ""));
  } catch (...) {
    end();
    throw;
  }
}

ArrayCollectives::Part ArrayCollectives::start(std::size_t group, sdk::OpSpec op, std::string message) {
  Timeline* const recording = timeline();
  if (recording == nullptr) {
    return {.op = collectives_->start_once(group, std::move(op))};
  }
  Timeline::Moved moved{
      .kind = op.opcode == SR_OP_SEND   ? Timeline::Moved::Kind::send
              : op.opcode == SR_OP_RECV ? Timeline::Moved::Kind::receive
                                        : Timeline::Moved::Kind::collective,
      .name = op.label,
      .message = std::move(message),
      .bytes = static_cast<std::int64_t>(std::max(op.send ? op.send->bytes : 0, op.recv ? op.recv->bytes : 0)),
      .start_begin = now_in_nanoseconds()};
  const Collectives::Handle started = collectives_->start_once(group, std::move(op));
  moved.start_end = now_in_nanoseconds();
  return {.op = started, .recorded = recording->add(std::move(moved))};
}

void ArrayCollectives::finish(const Part& part) {
  Timeline* const recording = timeline();
  Timeline::Moved* const moved = recording == nullptr ? nullptr : recording->moved_at(part.recorded);
  if (moved == nullptr) {
    collectives_->finish_once(part.op);
    return;
  }
  moved->wait_begin = now_in_nanoseconds();
  const auto times = collectives_->finish_once(part.op).value_or(Communicator::Times{});
  moved->wait_end = now_in_nanoseconds();
  moved->begun = times.begun;
  moved->ended = times.ended;
}

std::vector<ArrayCollectives::Facts> ArrayCollectives::compare(const Facts& own) {
  std::vector<Facts> all(world_size_);
  sdk::OpSpec op;
  op.opcode = SR_OP_ALL_GATHER;
  op.dtype = SR_DTYPE_U8;
  op.count = sizeof(Facts);
  op.send = buffer_of(&own, sizeof(Facts));
  op.recv = buffer_of(all.data(), all.size() * sizeof(Facts));
  op.label = fmt::format("the arguments of {}", call_names[own.call]);
  run(std::move(op));
  const auto differ = [&](std::size_t rank, std::string_view what, const std::string& others,
                          const std::string& first) {
    refuse_call(fmt::format("rank {} calls {} {}, and rank 0 {}: all ranks call the same", rank, what, others, first));
  };
  for (std::size_t r = 1; r < all.size(); ++r) {
    const Facts& each = all[r];
    const Facts& first = all[0];
    const std::string name(call_names[std::min<std::size_t>(each.call, call_names.size() - 1)]);
    if (each.call != first.call) {
      refuse_call(fmt::format("rank {} calls {}, and rank 0 calls {}: all ranks call the collectives in one order", r,
                              name, call_names[first.call]));
    }
    if (each.axis != first.axis) {
      differ(r, name, fmt::format("with {} {}", each.call == is_broadcast ? "root" : "axis", each.axis),
             fmt::format("with {}", first.axis));
    }
    if (each.reduction != first.reduction) {
      differ(r, name, fmt::format("with the op {}", reduction_names.at(each.reduction)),
             fmt::format("with {}", reduction_names.at(first.reduction)));
    }
    if (own.call == is_broadcast || own.call == is_barrier) {
      continue;
    }
    if (each.element != first.element) {
      differ(r, name, fmt::format("of {} elements", element_name(each.element)),
             fmt::format("of {}", element_name(first.element)));
    }
    if (each.dimensions != first.dimensions) {
      differ(r, name, fmt::format("of an array {}", shape_text(shape_of(each))),
             fmt::format("of {}", shape_text(shape_of(first))));
    }
  }
  return all;
}

void ArrayCollectives::require_same_shape(const std::vector<Facts>& all, std::optional<std::uint32_t> axis) const {
  for (std::size_t r = 1; r < all.size(); ++r) {
    for (std::uint32_t d = 0; d < all[r].dimensions; ++d) {
      if (d != axis && all[r].shape[d] != all[0].shape[d]) {
        refuse_call(fmt::format("the array of rank {} is {}, and that of rank 0 {}: they have to be equal{}", r,
                                shape_text(shape_of(all[r])), shape_text(shape_of(all[0])),
                                axis ? fmt::format(" except along axis {}", *axis) : ""));
      }
    }
  }
}

void ArrayCollectives::barrier() {
  const TimedCall call = timed("barrier");
  if (collectives_ != nullptr) {
    static_cast<void>(compare({.call = is_barrier}));
  }
}

void ArrayCollectives::all_gather(const ArrayView& array, std::uint32_t axis, const MakeArray& make) {
  const TimedCall call = timed("all_gather", static_cast<std::int64_t>(array.bytes()));
  require_axis_of(array, axis);
  if (collectives_ == nullptr) {
    return copy_array(array, make);
  }
  Facts own = facts_of(is_all_gather, array);
  own.axis = axis;
  const std::vector<Facts> all = compare(own);
  require_same_shape(all, axis);
  std::vector<std::int64_t> sizes;
  std::ranges::transform(all, std::back_inserter(sizes), [&](const Facts& each) { return each.shape[axis]; });
  ArrayView result{.element = array.element, .shape = array.shape};
  result.shape[axis] = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  result.address = make(result);
  if (result.elements() == 0) {
    return;
  }
  const ArrayAxis along(array.shape, axis);
  ArrayBlocks blocks(result.address, result.dtype(), along, sizes);
  sdk::OpSpec op;
  op.opcode = SR_OP_ALL_GATHERV;
  op.dtype = transport_type(array.dtype());
  op.recv_counts = blocks.counts();
  op.send = buffer_of(array.address, array.bytes());
  op.recv = buffer_of(blocks.data(), blocks.bytes());
  op.label = "all_gather";
  run(std::move(op));
  blocks.give_to_array();
}

void ArrayCollectives::all_reduce(const ArrayView& array, std::uint32_t reduction, const MakeArray& make) {
  const TimedCall call = timed("all_reduce", static_cast<std::int64_t>(array.bytes()));
  const std::uint32_t code = checked_reduction(reduction);
  if (collectives_ == nullptr) {
    return copy_array(array, make);
  }
  Facts own = facts_of(is_all_reduce, array);
  own.reduction = reduction;
  require_same_shape(compare(own), std::nullopt);
  void* const to = make({.element = array.element, .shape = array.shape});
  if (array.elements() == 0) {
    return;
  }
  sdk::OpSpec op;
  op.opcode = SR_OP_ALL_REDUCE;
  op.dtype = transport_type(array.dtype());
  op.reduction = code;
  op.count = static_cast<std::uint64_t>(array.elements());
  op.send = buffer_of(array.address, array.bytes());
  op.recv = buffer_of(to, array.bytes());
  op.label = "all_reduce";
  run(std::move(op));
}

void ArrayCollectives::reduce_scatter(const ArrayView& array, std::uint32_t axis, std::uint32_t reduction,
                                      const MakeArray& make) {
  const TimedCall call = timed("reduce_scatter", static_cast<std::int64_t>(array.bytes()));
  require_axis_of(array, axis);
  const std::uint32_t code = checked_reduction(reduction);
  if (collectives_ == nullptr) {
    return copy_array(array, make);
  }
  Facts own = facts_of(is_reduce_scatter, array);
  own.axis = axis;
  own.reduction = reduction;
  require_same_shape(compare(own), std::nullopt);
  const std::vector<std::int64_t> sizes = parts_of(array.shape[axis], world_size_);
  ArrayView result{.element = array.element, .shape = array.shape};
  result.shape[axis] = sizes[rank_];
  result.address = make(result);
  if (array.elements() == 0) {
    return;
  }
  const ArrayAxis along(array.shape, axis);
  ArrayBlocks blocks(array.address, array.dtype(), along, sizes);
  blocks.take_from_array();
  sdk::OpSpec op;
  op.opcode = SR_OP_REDUCE_SCATTERV;
  op.dtype = transport_type(array.dtype());
  op.reduction = code;
  op.recv_counts = blocks.counts();
  op.send = buffer_of(blocks.data(), blocks.bytes());
  op.recv = buffer_of(result.address, result.bytes());
  op.label = "reduce_scatter";
  run(std::move(op));
}

void ArrayCollectives::all_to_all(const ArrayView& array, std::uint32_t axis, const MakeArray& make) {
  const TimedCall call = timed("all_to_all", static_cast<std::int64_t>(array.bytes()));
  require_axis_of(array, axis);
  if (collectives_ == nullptr) {
    return copy_array(array, make);
  }
  Facts own = facts_of(is_all_to_all, array);
  own.axis = axis;
  const std::vector<Facts> all = compare(own);
  require_same_shape(all, axis);
  std::vector<std::int64_t> received;
  std::ranges::transform(all, std::back_inserter(received),
                         [&](const Facts& each) { return parts_of(each.shape[axis], world_size_)[rank_]; });
  ArrayView result{.element = array.element, .shape = array.shape};
  result.shape[axis] = std::accumulate(received.begin(), received.end(), std::int64_t{0});
  result.address = make(result);
  const ArrayAxis along(array.shape, axis);
  if (along.outer * along.inner == 0) {
    return;
  }
  ArrayBlocks from(array.address, array.dtype(), along, parts_of(array.shape[axis], world_size_));
  ArrayBlocks to(result.address, result.dtype(), along, received);
  from.take_from_array();
  sdk::OpSpec op;
  op.opcode = SR_OP_ALL_TO_ALLV;
  op.dtype = transport_type(array.dtype());
  op.send_counts = from.counts();
  op.recv_counts = to.counts();
  op.send = buffer_of(from.data(), from.bytes());
  op.recv = buffer_of(to.data(), to.bytes());
  op.label = "all_to_all";
  run(std::move(op));
  to.give_to_array();
}

void ArrayCollectives::broadcast(const std::optional<ArrayView>& array, std::uint32_t root, const MakeArray& make) {
  const TimedCall call = timed("broadcast", array ? static_cast<std::int64_t>(array->bytes()) : 0);
  if (root >= world_size_) {
    refuse_call(fmt::format("there is no rank {} to be the root: the job has {}", static_cast<std::int32_t>(root),
                            world_size_));
  }
  if (root == rank_ && !array) {
    refuse_call(fmt::format("rank {} is the root and gives no array", rank_));
  }
  if (collectives_ == nullptr) {
    return copy_array(*array, make);
  }
  Facts own = array ? facts_of(is_broadcast, *array) : Facts{.call = is_broadcast};
  own.axis = root;
  const Facts given = compare(own)[root];
  ArrayView result{.element = given.element, .shape = shape_of(given)};
  result.address = make(result);
  if (result.elements() == 0) {
    return;
  }
  sdk::OpSpec op;
  op.opcode = SR_OP_BROADCAST;
  op.dtype = transport_type(result.dtype());
  op.peer = root;
  op.count = static_cast<std::uint64_t>(result.elements());
  if (rank_ == root) {
    op.send = buffer_of(array->address, array->bytes());
  }
  op.recv = buffer_of(result.address, result.bytes());
  op.label = "broadcast";
  run(std::move(op));
}

void ArrayCollectives::add_up(std::span<double> numbers) {
  const TimedCall call = timed("the ranks' sums", static_cast<std::int64_t>(numbers.size_bytes()));
  if (collectives_ == nullptr) {
    return;
  }
  const std::vector<double> own(numbers.begin(), numbers.end());
  sdk::OpSpec op;
  op.opcode = SR_OP_ALL_REDUCE;
  op.dtype = SR_DTYPE_F64;
  op.reduction = SR_REDUCE_SUM;
  op.count = numbers.size();
  op.send = buffer_of(own.data(), numbers.size_bytes());
  op.recv = buffer_of(numbers.data(), numbers.size_bytes());
  op.label = "the ranks' sums";
  run(std::move(op));
}

}  // namespace shardrun::runtime
