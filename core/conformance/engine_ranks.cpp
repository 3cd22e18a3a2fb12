#include "core/conformance/engine_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <shardrun/engine.h>

#include <algorithm>
#include <cstring>

#include "core/base/error.h"
#include "core/mesh/placement.h"

namespace shardrun::conformance {
namespace {

using plugins::ArrayView;
using plugins::MakeArray;

constexpr std::size_t element_size = 4;

/// The arrays' facts come first: element type, number of dimensions, extents.
std::string text_of(const ArrayView& array) {
  std::vector<std::int64_t> facts = {array.element, static_cast<std::int64_t>(array.shape.size())};
  facts.insert(facts.end(), array.shape.begin(), array.shape.end());
  std::string text(reinterpret_cast<const char*>(facts.data()), facts.size() * sizeof(std::int64_t));
  if (array.elements() > 0) {
    text.append(static_cast<const char*>(array.address), array.bytes());
  }
  return text;
}

HeldArray array_of(const std::string& text) {
  const auto number = [&](std::size_t index) {
    std::int64_t value = 0;
    std::memcpy(&value, text.data() + index * sizeof(value), sizeof(value));
    return value;
  };
  HeldArray array{.element = static_cast<std::uint32_t>(number(0)), .shape = {}, .bytes = {}};
  const auto dimensions = static_cast<std::size_t>(number(1));
  for (std::size_t d = 0; d < dimensions; ++d) {
    array.shape.push_back(number(2 + d));
  }
  array.bytes = text.substr((2 + dimensions) * sizeof(std::int64_t));
  return array;
}

void give(const HeldArray& array, const MakeArray& make) {
  void* const to = make({.element = array.element, .shape = array.shape});
  if (!array.bytes.empty()) {
    std::memcpy(to, array.bytes.data(), array.bytes.size());
  }
}

void require_along(const ArrayView& array, std::uint32_t axis) {
  if (axis >= array.shape.size()) {
    throw Error(ErrorCode::plugin, fmt::format("there is no axis {} in an array [{}]", static_cast<std::int32_t>(axis),
                                               fmt::join(array.shape, ", ")));
  }
}

/// Bytes of an index of the axis.
std::size_t inner_bytes(const HeldArray& array, std::uint32_t axis) {
  std::size_t bytes = element_size;
  for (std::size_t d = axis + 1; d < array.shape.size(); ++d) {
    bytes *= static_cast<std::size_t>(array.shape[d]);
  }
  return bytes;
}

HeldArray part_of(const HeldArray& array, std::uint32_t axis, std::uint32_t parts, std::uint32_t index) {
  const auto extent = static_cast<std::size_t>(array.shape[axis]);
  const mesh::Interval part = mesh::part_of({0, array.shape[axis]}, parts, index);
  HeldArray result{.element = array.element, .shape = array.shape, .bytes = {}};
  result.shape[axis] = part.size();
  const std::size_t inner = inner_bytes(array, axis);
  for (std::size_t at = 0; at < array.bytes.size(); at += extent * inner) {
    result.bytes += array.bytes.substr(at + static_cast<std::size_t>(part.begin) * inner,
                                       static_cast<std::size_t>(part.size()) * inner);
  }
  return result;
}

HeldArray joined(const std::vector<HeldArray>& arrays, std::uint32_t axis) {
  HeldArray result = arrays.front();
  result.shape[axis] = 0;
  result.bytes.clear();
  for (const HeldArray& array : arrays) {
    std::vector<std::int64_t> others = array.shape;
    others[axis] = 0;
    if (others != result.shape || array.element != result.element) {
      throw Error(ErrorCode::plugin,
                  fmt::format("arrays [{}] and [{}] are joined along axis {}", fmt::join(arrays.front().shape, ", "),
                              fmt::join(array.shape, ", "), axis));
    }
  }
  std::size_t outer = 1;
  for (std::uint32_t d = 0; d < axis; ++d) {
    outer *= static_cast<std::size_t>(result.shape[d]);
  }
  for (std::size_t o = 0; o < outer; ++o) {
    for (const HeldArray& array : arrays) {
      const std::size_t block = static_cast<std::size_t>(array.shape[axis]) * inner_bytes(array, axis);
      result.bytes += array.bytes.substr(o * block, block);
    }
  }
  for (const HeldArray& array : arrays) {
    result.shape[axis] += array.shape[axis];
  }
  return result;
}

template <class Number>
void reduce_into(std::string& sum, const std::string& other, std::uint32_t reduction) {
  for (std::size_t at = 0; at < sum.size(); at += sizeof(Number)) {
    Number a{};
    Number b{};
    std::memcpy(&a, sum.data() + at, sizeof(a));
    std::memcpy(&b, other.data() + at, sizeof(b));
    a = reduction == SR_RANKS_SUM       ? a + b
        : reduction == SR_RANKS_PRODUCT ? a * b
        : reduction == SR_RANKS_MIN     ? std::min(a, b)
                                        : std::max(a, b);
    std::memcpy(sum.data() + at, &a, sizeof(a));
  }
}

}  // namespace

std::vector<HeldArray> StoreRanks::exchange(const std::string& call, const ArrayView& array) {
  if (n_ == 1) {
    return {array_of(text_of(array))};
  }
  const std::string name = fmt::format("{}, call {}", place_, calls_++);
  peer_.tell(name, fmt::format("{:20}", call) + text_of(array));
  std::vector<HeldArray> arrays;
  for (std::uint32_t other = 0; other < n_; ++other) {
    const std::string text = peer_.hear(name, other);
    if (text.substr(0, 20) != fmt::format("{:20}", call)) {
      throw Error(ErrorCode::plugin,
                  fmt::format("rank {} calls {}, and rank {} calls {}: all ranks call the collectives in one order",
                              rank(), call, other, text.substr(0, text.find(' '))));
    }
    arrays.push_back(array_of(text.substr(20)));
  }
  return arrays;
}

HeldArray StoreRanks::reduced(const std::string& call, const ArrayView& array, std::uint32_t reduction) {
  const std::vector<HeldArray> arrays = exchange(call, array);
  HeldArray sum = arrays.front();
  for (std::size_t r = 1; r < arrays.size(); ++r) {
    if (arrays[r].shape != sum.shape || arrays[r].element != sum.element) {
      throw Error(ErrorCode::plugin, fmt::format("{}: the array of rank {} is [{}], and that of rank 0 [{}]", call, r,
                                                 fmt::join(arrays[r].shape, ", "), fmt::join(sum.shape, ", ")));
    }
    sum.element == SR_ELEMENT_F32 ? reduce_into<float>(sum.bytes, arrays[r].bytes, reduction)
                                  : reduce_into<std::int32_t>(sum.bytes, arrays[r].bytes, reduction);
  }
  return sum;
}

void StoreRanks::barrier() { (void)exchange("barrier", {.shape = {0}}); }

void StoreRanks::all_gather(const ArrayView& array, std::uint32_t axis, const MakeArray& make) {
  require_along(array, axis);
  give(joined(exchange("all_gather", array), axis), make);
}

void StoreRanks::all_reduce(const ArrayView& array, std::uint32_t reduction, const MakeArray& make) {
  give(reduced("all_reduce", array, reduction), make);
}

void StoreRanks::reduce_scatter(const ArrayView& array, std::uint32_t axis, std::uint32_t reduction,
                                const MakeArray& make) {
  require_along(array, axis);
  give(part_of(reduced("reduce_scatter", array, reduction), axis, n_, rank()), make);
}

void StoreRanks::all_to_all(const ArrayView& array, std::uint32_t axis, const MakeArray& make) {
  require_along(array, axis);
  std::vector<HeldArray> parts;
  for (const HeldArray& each : exchange("all_to_all", array)) {
    parts.push_back(part_of(each, axis, n_, rank()));
  }
  give(joined(parts, axis), make);
}

void StoreRanks::broadcast(const std::optional<ArrayView>& array, std::uint32_t root, const MakeArray& make) {
  if (root >= n_) {
    throw Error(ErrorCode::plugin, fmt::format("there is no rank {} to be the root", root));
  }
  give(exchange("broadcast", array.value_or(ArrayView{.shape = {0}}))[root], make);
}

void StoreRanks::require_peer(std::uint32_t peer) const {
  if (peer >= n_ || peer == rank()) {
    throw Error(ErrorCode::plugin, fmt::format("rank {} exchanges a message with rank {} of {}", rank(),
                                               static_cast<std::int32_t>(peer), n_));
  }
}

std::string StoreRanks::message_name(std::uint32_t from, std::uint32_t to, std::uint64_t number) const {
  return fmt::format("{}, message {} from {} to {}", place_, number, from, to);
}

std::uint64_t StoreRanks::start_send(std::uint32_t to, const ArrayView& array) {
  require_peer(to);
  peer_.tell(message_name(rank(), to, sent_[to]++), text_of(array));
  messages_[++next_message_] = {};
  return next_message_;
}

std::uint64_t StoreRanks::start_receive(std::uint32_t from, const ArrayView& array) {
  require_peer(from);
  messages_[++next_message_] = {.from = from, .number = received_[from]++, .array = array};
  return next_message_;
}

bool StoreRanks::test(std::uint64_t message) { return messages_.contains(message); }

void StoreRanks::wait(std::uint64_t message) {
  const auto found = messages_.find(message);
  if (found == messages_.end()) {
    throw Error(ErrorCode::plugin, fmt::format("there is no message {}, or it was waited for", message));
  }
  const Message waited = found->second;
  messages_.erase(found);
  if (!waited.array) {
    return;
  }
  const HeldArray array = array_of(peer_.hear(message_name(waited.from, rank(), waited.number), waited.from));
  if (array.element != waited.array->element || array.shape != waited.array->shape) {
    throw Error(ErrorCode::plugin,
                fmt::format("rank {} sent an array [{}], and it is received into one [{}]", waited.from,
                            fmt::join(array.shape, ", "), fmt::join(waited.array->shape, ", ")));
  }
  give(array, [&](const ArrayView&) { return waited.array->address; });
}

void StoreRanks::receive(std::uint32_t from, const MakeArray& make) {
  require_peer(from);
  give(array_of(peer_.hear(message_name(from, rank(), received_[from]++), from)), make);
}

}  // namespace shardrun::conformance
