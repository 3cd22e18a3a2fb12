#include "core/runtime/array_collectives.h"

#include <cstring>
#include <numeric>
#include <utility>

#include "core/mesh/placement.h"

namespace shardrun::runtime {
namespace {

/// Copies `size` indices of an array's axis, from `begin` on, to or from consecutive memory. `inner`: bytes per index.
void copy_block(std::byte* whole, std::int64_t extent, std::int64_t outer, std::int64_t inner, std::int64_t begin,
                std::int64_t size, std::byte* block, bool into_whole) {
  const std::int64_t row = size * inner;
  for (std::int64_t o = 0; o < outer && row > 0; ++o) {
    std::byte* const in_whole = whole + (o * extent + begin) * inner;
    std::memcpy(into_whole ? in_whole : block + o * row, into_whole ? block + o * row : in_whole,
                static_cast<std::size_t>(row));
  }
}

}  // namespace

ArrayAxis::ArrayAxis(const std::vector<std::int64_t>& shape, std::uint32_t axis) {
  for (std::uint32_t d = 0; d < shape.size(); ++d) {
    (d < axis ? outer : inner) *= d == axis ? 1 : shape[d];
  }
}

std::vector<std::int64_t> parts_of(std::int64_t extent, std::uint32_t parts) {
  std::vector<std::int64_t> sizes;
  for (std::uint32_t index = 0; index < parts; ++index) {
    const mesh::Interval part = mesh::part_of({0, extent}, parts, index);
    sizes.push_back(part.size());
  }
  return sizes;
}

ArrayBlocks::ArrayBlocks(void* whole, graph::DType element, const ArrayAxis& axis, std::vector<std::int64_t> sizes)
    : whole_(static_cast<std::byte*>(whole)),
      element_bytes_(static_cast<std::int64_t>(graph::element_bytes(element))),
      axis_(axis),
      sizes_(std::move(sizes)) {
  extent_ = std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{0});
  if (axis_.outer > 1) {
    own_.resize(bytes());
  }
}

std::size_t ArrayBlocks::bytes() const noexcept {
  return axis_.block(extent_) * static_cast<std::size_t>(element_bytes_);
}

std::vector<std::uint64_t> ArrayBlocks::counts() const {
  std::vector<std::uint64_t> counts;
  for (const std::int64_t size : sizes_) {
    counts.push_back(axis_.block(size));
  }
  return counts;
}

void ArrayBlocks::copy(bool into_array) {
  if (axis_.outer == 1) {
    return;
  }
  std::int64_t begin = 0;
  std::byte* block = own_.data();
  for (const std::int64_t size : sizes_) {
    copy_block(whole_, extent_, axis_.outer, axis_.inner * element_bytes_, begin, size, block, into_array);
    begin += size;
    block += axis_.block(size) * static_cast<std::size_t>(element_bytes_);
  }
}

}  // namespace shardrun::runtime
