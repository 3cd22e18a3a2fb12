#include "core/data/feed.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "core/device/host_tensor.h"

namespace shardrun::data {
namespace {

using device::HostTensor;
using device::TensorView;

/// Whether a part of a tensor consists of whole rows.
bool has_whole_rows(const TensorView& view) {
  return std::equal(view.shape.begin() + 1, view.shape.begin() + view.rank, view.global.begin() + 1);
}

/// A host copy of a whole tensor, of which this rank has a part.
struct Whole {
  explicit Whole(const TensorView& part) : view(part) {
    view.shape = part.global;
    view.origin = {};
    bytes.resize(view.bytes());
    view.data = bytes.data();
  }

  TensorView view;
  std::vector<std::byte> bytes;
};

void copy_part(const Whole& whole, const HostTensor& part_of_rank) {
  const TensorView& part = part_of_rank.view();
  const std::size_t bytes = graph::element_bytes(part.dtype);
  for (std::int64_t local = 0; local < part.elements(); ++local) {
    std::int64_t rest = local;
    std::int64_t from = 0;
    std::int64_t stride = 1;
    for (std::uint32_t d = part.rank; d-- > 0;) {
      from += (part.origin[d] + rest % part.shape[d]) * stride;
      stride *= part.global[d];
      rest /= part.shape[d];
    }
    std::memcpy(part_of_rank.bytes().data() + static_cast<std::size_t>(local) * bytes,
                whole.bytes.data() + static_cast<std::size_t>(from) * bytes, bytes);
  }
}

/// Writes samples to x and y. `fill(first, inputs, targets)` must write all rows of its views.
template <typename Fill>
void feed(std::int64_t first, HostTensor& x, HostTensor& y, const Fill& fill) {
  const TensorView& inputs = x.view();
  const TensorView& targets = y.view();
  const bool same_rows = inputs.origin[0] == targets.origin[0] && inputs.shape[0] == targets.shape[0];
  if (same_rows && has_whole_rows(inputs) && has_whole_rows(targets)) {
    if (inputs.shape[0] > 0) {
      fill(first + inputs.origin[0], inputs, targets);
    }
    return;
  }
  const Whole all_inputs(inputs);
  const Whole all_targets(targets);
  fill(first, all_inputs.view, all_targets.view);
  copy_part(all_inputs, x);
  copy_part(all_targets, y);
}

template <typename Fill>
void feed(std::int64_t first, const device::HostAccess& host, const TensorView& inputs, const TensorView& targets,
          const Fill& fill) {
  HostTensor x(host, inputs, device::Access::write);
  HostTensor y(host.without(inputs), targets, device::Access::write);
  feed(first, x, y, fill);
  x.store();
  y.store();
}

}  // namespace

double feed_training(const Dataset& dataset, std::uint64_t seed, std::int64_t first, const device::HostAccess& host,
                     const TensorView& inputs, const TensorView& targets) {
  std::chrono::steady_clock::duration reading{};
  feed(first, host, inputs, targets, [&](std::int64_t row, const TensorView& x, const TensorView& y) {
    const auto begin = std::chrono::steady_clock::now();
    dataset.fill_training(seed, row, x, y);
    reading = std::chrono::steady_clock::now() - begin;
  });
  return std::chrono::duration<double>(reading).count();
}

void feed_evaluation(const Dataset& dataset, std::int64_t first, const device::HostAccess& host,
                     const TensorView& inputs, const TensorView& targets) {
  feed(first, host, inputs, targets,
       [&](std::int64_t row, const TensorView& x, const TensorView& y) { dataset.fill_evaluation(row, x, y); });
}

void feed_inputs(const device::HostAccess& host, const TensorView& inputs,
                 const std::function<void(std::int64_t row, const TensorView& rows)>& fill) {
  HostTensor x(host, inputs, device::Access::write);
  if (!has_whole_rows(x.view())) {
    const Whole all(x.view());
    fill(0, all.view);
    copy_part(all, x);
  } else if (x.view().shape[0] > 0) {
    fill(x.view().origin[0], x.view());
  }
  x.store();
}

}  // namespace shardrun::data
