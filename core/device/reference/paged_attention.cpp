#include <cmath>
#include <vector>

#include "core/device/paging.h"
#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

/// pages, x, table, positions -> pages. Of tokens with the same place, the last one stays.
void write_pages(const KernelCall& call) {
  const TensorView& x = call.inputs[1];
  const Paging paging = paging_of(call.inputs[0], call.inputs[2]);
  const std::int32_t* positions = integers(call.inputs[3]);
  double* const to = reals(call.outputs[0]);
  if (to != reals(call.inputs[0])) {
    std::copy_n(reals(call.inputs[0]), call.inputs[0].elements(), to);
  }
  for (std::int64_t token = 0; token < x.shape[0] * x.shape[1]; ++token) {
    for (std::int64_t h = 0; h < x.shape[2]; ++h) {
      if (const std::int64_t row = paging.row(token / x.shape[1], positions[token], h); row >= 0) {
        std::copy_n(reals(x) + (token * x.shape[2] + h) * paging.width, paging.width, to + row);
      }
    }
  }
}

/// softmax(q K^T scale) V over the positions that the query sees. Vaswani et al. 2017, arXiv:1706.03762, equation 1.
/// q, keys, values, table, positions -> out
void paged_attention(const KernelCall& call) {
  const TensorView& q = call.inputs[0];
  const TensorView& keys = call.inputs[1];
  const Paging paging = paging_of(keys, call.inputs[3]);
  const std::int64_t group = call.attributes.integer("group");
  const std::int64_t window = call.attributes.integer("window");
  const std::int64_t width = paging.width;
  const double given = call.attributes.real("scale");
  const double scale = given != 0 ? given : 1 / std::sqrt(static_cast<double>(width));
  for_each(call, rows(q), 4 * paging.room() * width, [&](std::int64_t r) {
    const std::int64_t token = r / q.shape[2];
    const std::int64_t head = (r % q.shape[2] + q.origin[2]) / group - keys.origin[1];
    const std::int64_t position = integers(call.inputs[4])[token];
    const double* const query = reals(q) + r * width;
    double* const out = reals(call.outputs[0]) + r * width;
    std::fill_n(out, width, 0.0);
    double highest = -INFINITY;
    std::vector<std::pair<double, std::int64_t>> seen;  // the score and the row of each visible position
    const Sight sight = sight_of(position, window, paging.room());
    for (std::int64_t p = sight.first; p < sight.last; ++p) {
      const std::int64_t row = paging.row(token / q.shape[1], p, head);
      if (row < 0) {
        continue;
      }
      double score = 0;
      for (std::int64_t i = 0; i < width; ++i) {
        score += query[i] * reals(keys)[row + i];
      }
      seen.emplace_back(score * scale, row);
      highest = std::max(highest, score * scale);
    }
    double sum = 0;
    for (auto& [score, row] : seen) {
      score = std::exp(score - highest);
      sum += score;
    }
    for (const auto& [probability, row] : seen) {
      for (std::int64_t i = 0; i < width; ++i) {
        out[i] += probability / sum * reals(call.inputs[2])[row + i];
      }
    }
  });
}

const RegisterKernel register_write_pages("reference", "write_pages", {.run = write_pages});
const RegisterKernel register_paged_attention("reference", "paged_attention", {.run = paged_attention});

}  // namespace
}  // namespace shardrun::device::reference
