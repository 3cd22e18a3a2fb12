#include "core/data/feed.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace shardrun::data {
namespace {

using device::TensorView;

/// Whether a part has whole rows.
bool has_whole_rows(const TensorView& view) {
  return std::equal(view.shape.begin() + 1, view.shape.begin() + view.rank, view.global.begin() + 1);
}

/// All rows and columns of a tensor, in memory of its own.
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

void copy_part(const Whole& whole, const TensorView& part) {
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
    std::memcpy(static_cast<std::byte*>(part.data) + static_cast<std::size_t>(local) * bytes,
                whole.bytes.data() + static_cast<std::size_t>(from) * bytes, bytes);
  }
}

/// `fill(first, inputs, targets)` writes whole rows, as many as the views have.
template <typename Fill>
void feed(std::int64_t first, const TensorView& inputs, const TensorView& targets, const Fill& fill) {
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
  copy_part(all_inputs, inputs);
  copy_part(all_targets, targets);
}

}  // namespace

void feed_training(const Dataset& dataset, std::uint64_t seed, std::int64_t first, const TensorView& inputs,
                   const TensorView& targets) {
  feed(first, inputs, targets,
       [&](std::int64_t row, const TensorView& x, const TensorView& y) { dataset.fill_training(seed, row, x, y); });
}

void feed_evaluation(const Dataset& dataset, std::int64_t first, const TensorView& inputs, const TensorView& targets) {
  feed(first, inputs, targets,
       [&](std::int64_t row, const TensorView& x, const TensorView& y) { dataset.fill_evaluation(row, x, y); });
}

}  // namespace shardrun::data
