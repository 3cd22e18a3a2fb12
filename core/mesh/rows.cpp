#include "core/mesh/rows.h"

#include <algorithm>

namespace shardrun::mesh {

std::vector<Row> rows_of(const std::vector<std::int64_t>& whole, const Box& box) {
  std::size_t inner = whole.size();  // from this dimension on, elements are consecutive in both part and whole
  std::int64_t row = 1;
  while (inner > 0) {
    --inner;
    row *= box.shape[inner];
    if (box.shape[inner] != whole[inner]) {
      break;
    }
  }
  const std::int64_t before = box.run ? box.run->begin : 0;
  std::vector<Row> rows;
  for (std::int64_t local = 0; local < box.elements();) {
    const std::int64_t count = std::min(row - (before + local) % row, box.elements() - local);
    rows.push_back({.whole = box.index_in_whole(whole, local), .local = local, .count = count});
    local += count;
  }
  return rows;
}

std::vector<SharedRow> shared_rows(const std::vector<Row>& first, const std::vector<Row>& second) {
  std::vector<SharedRow> shared;
  auto a = first.begin();
  auto b = second.begin();
  while (a != first.end() && b != second.end()) {
    const std::int64_t begin = std::max(a->whole, b->whole);
    const std::int64_t end = std::min(a->whole + a->count, b->whole + b->count);
    if (begin < end) {
      shared.push_back(
          {.in_first = a->local + begin - a->whole, .in_second = b->local + begin - b->whole, .count = end - begin});
    }
    ++(a->whole + a->count <= b->whole + b->count ? a : b);
  }
  return shared;
}

bool lies_within(const Box& box, const std::vector<std::int64_t>& whole) noexcept {
  if (box.origin.size() != whole.size() || box.shape.size() != whole.size()) {
    return false;
  }
  std::int64_t elements = 1;
  for (std::size_t d = 0; d < whole.size(); ++d) {
    if (box.origin[d] < 0 || box.shape[d] < 0 || box.shape[d] > whole[d] || box.origin[d] > whole[d] - box.shape[d]) {
      return false;
    }
    elements *= box.shape[d];
  }
  return !box.run || (box.run->begin >= 0 && box.run->begin <= box.run->end && box.run->end <= elements);
}

bool overlap(const Box& first, const Box& second) noexcept {
  for (std::size_t d = 0; d < first.shape.size(); ++d) {
    if (first.origin[d] >= second.origin[d] + second.shape[d] || second.origin[d] >= first.origin[d] + first.shape[d]) {
      return false;
    }
  }
  return true;
}

}  // namespace shardrun::mesh
