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

std::size_t element_bytes(const TensorView& view, std::size_t f32_bytes) noexcept {
  return view.dtype == graph::DType::f32 ? f32_bytes : sizeof(std::int32_t);
}

/// All rows and columns of a tensor, in memory of its own.
struct Whole {
  Whole(const TensorView& part, std::size_t f32_bytes) : view(part) {
    view.shape = part.global;
    view.origin = {};
    bytes.resize(static_cast<std::size_t>(view.elements()) * element_bytes(part, f32_bytes));
    view.data = bytes.data();
  }

  TensorView view;
  std::vector<std::byte> bytes;
};

void copy_part(const Whole& whole, const TensorView& part, std::size_t bytes) {
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
void feed(std::int64_t first, const TensorView& inputs, const TensorView& targets, std::size_t f32_bytes,
          const Fill& fill) {
  const bool same_rows = inputs.origin[0] == targets.origin[0] && inputs.shape[0] == targets.shape[0];
  if (same_rows && has_whole_rows(inputs) && has_whole_rows(targets)) {
    if (inputs.shape[0] > 0) {
      fill(first + inputs.origin[0], inputs, targets);
    }
    return;
  }
  const Whole all_inputs(inputs, f32_bytes);
  const Whole all_targets(targets, f32_bytes);
  fill(first, all_inputs.view, all_targets.view);
  copy_part(all_inputs, inputs, element_bytes(inputs, f32_bytes));
  copy_part(all_targets, targets, element_bytes(targets, f32_bytes));
}

}  // namespace

void feed_training(const Dataset& dataset, std::uint64_t seed, std::int64_t first, const TensorView& inputs,
                   const TensorView& targets, std::size_t f32_bytes) {
  feed(first, inputs, targets, f32_bytes, [&](std::int64_t row, const TensorView& x, const TensorView& y) {
    dataset.fill_training(seed, row, x, y, f32_bytes);
  });
}

void feed_evaluation(const Dataset& dataset, std::int64_t first, const TensorView& inputs, const TensorView& targets,
                     std::size_t f32_bytes) {
  feed(first, inputs, targets, f32_bytes, [&](std::int64_t row, const TensorView& x, const TensorView& y) {
    dataset.fill_evaluation(row, x, y, f32_bytes);
  });
}

}  // namespace shardrun::data
