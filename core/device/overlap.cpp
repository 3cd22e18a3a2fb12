#include "core/device/overlap.h"

#include <algorithm>
#include <span>

#include "core/base/error.h"
#include "core/graph/regroup.h"

namespace shardrun::device {
namespace {

/// A part of one dimension: `size` indices from `origin`.
struct Stretch {
  std::int64_t origin;
  std::int64_t size;
};

/// Adds an innermost dimension, of which the operand has the part x and the result the part y.
void add(Overlap& overlap, Stretch x, Stretch y) {
  const std::int64_t begin = std::max(x.origin, y.origin);
  const std::int64_t end = std::min(x.origin + x.size, y.origin + y.size);
  const std::uint32_t d = overlap.rank++;
  overlap.sizes[d] = std::max<std::int64_t>(end - begin, 0);
  overlap.from_shape[d] = x.size;
  overlap.from_first[d] = begin - x.origin;
  overlap.to_shape[d] = y.size;
  overlap.to_first[d] = begin - y.origin;
}

/// Joins the dimensions [begin, end) to one. REQUIRES: this part has all indices of each except the first.
Stretch joined(const TensorView& view, std::size_t begin, std::size_t end) {
  Stretch all{begin < end ? view.origin[begin] : 0, begin < end ? view.shape[begin] : 1};
  for (std::size_t d = begin + 1; d < end; ++d) {
    all.origin *= view.global[d];
    all.size *= view.global[d];
  }
  return all;
}

std::span<const std::int64_t> whole_shape(const TensorView& view) { return {view.global.data(), view.rank}; }

}  // namespace

std::int64_t Overlap::elements() const noexcept {
  std::int64_t count = 1;
  for (std::uint32_t d = 0; d < rank; ++d) {
    count *= sizes[d];
  }
  return count;
}

void Overlap::require_all() const {
  bool empty = false;
  bool all = true;
  for (std::uint32_t d = 0; d < rank; ++d) {
    empty = empty || to_shape[d] == 0;
    all = all && sizes[d] == to_shape[d];
  }
  if (!all && !empty) {
    throw Error(ErrorCode::internal, "the operand's part lacks an element that the result needs");
  }
}

Overlap shifted_overlap(const TensorView& x, const TensorView& y, std::uint32_t dim, std::int64_t shift) {
  Overlap overlap;
  for (std::uint32_t d = 0; d < x.rank; ++d) {
    add(overlap, {x.origin[d] - (d == dim ? shift : 0), x.shape[d]}, {y.origin[d], y.shape[d]});
  }
  return overlap;
}

Overlap reshaped_overlap(const TensorView& x, const TensorView& y) {
  Overlap overlap;
  graph::for_each_group(whole_shape(x), whole_shape(y), [&](const graph::Regrouped& group) {
    if (group.has_both()) {
      add(overlap, joined(x, group.from, group.from_end), joined(y, group.to, group.to_end));
    }
  });
  return overlap;
}

}  // namespace shardrun::device
