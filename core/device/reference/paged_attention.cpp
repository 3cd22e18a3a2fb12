#include <cmath>
#include <vector>

#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

/// Where the rows of sequences are in pages [pages, heads, page, head_dim].
struct Paging {
  Paging(const TensorView& pages, const TensorView& table)
      : pages_(pages.shape[0]),
        heads_(pages.shape[1]),
        page_(pages.shape[2]),
        width_(pages.shape[3]),
        of_sequence_(table.shape[1]),
        table_(integers(table)) {}

  /// The number of the first element of this position's row; -1 if it is on no page.
  [[nodiscard]] std::int64_t row(std::int64_t sequence, std::int64_t position, std::int64_t head) const {
    if (position < 0 || position / page_ >= of_sequence_) {
      return -1;
    }
    const std::int64_t page = table_[sequence * of_sequence_ + position / page_];
    return page < 0 || page >= pages_ ? -1 : ((page * heads_ + head) * page_ + position % page_) * width_;
  }
  [[nodiscard]] std::int64_t width() const { return width_; }

 private:
  std::int64_t pages_;
  std::int64_t heads_;
  std::int64_t page_;
  std::int64_t width_;
  std::int64_t of_sequence_;
  const std::int32_t* table_;
};

/// pages, x, table, positions -> pages. Of two tokens at one place, the later one stays.
void write_pages(const KernelCall& call) {
  const TensorView& x = call.inputs[1];
  const Paging paging(call.inputs[0], call.inputs[2]);
  const std::int32_t* positions = integers(call.inputs[3]);
  double* const to = reals(call.outputs[0]);
  if (to != reals(call.inputs[0])) {
    std::copy_n(reals(call.inputs[0]), call.inputs[0].elements(), to);
  }
  for (std::int64_t token = 0; token < x.shape[0] * x.shape[1]; ++token) {
    for (std::int64_t h = 0; h < x.shape[2]; ++h) {
      if (const std::int64_t row = paging.row(token / x.shape[1], positions[token], h); row >= 0) {
        std::copy_n(reals(x) + (token * x.shape[2] + h) * paging.width(), paging.width(), to + row);
      }
    }
  }
}

/// softmax(q K^T scale) V over the positions that the query sees. Vaswani et al. 2017, arXiv:1706.03762, equation 1.
/// q, keys, values, table, positions -> out
void paged_attention(const KernelCall& call) {
  const TensorView& q = call.inputs[0];
  const TensorView& keys = call.inputs[1];
  const Paging paging(keys, call.inputs[3]);
  const std::int64_t group = call.attributes.integer("group");
  const std::int64_t window = call.attributes.integer("window");
  const std::int64_t width = paging.width();
  const double given = call.attributes.real("scale");
  const double scale = given != 0 ? given : 1 / std::sqrt(static_cast<double>(width));
  const std::int64_t room = call.inputs[3].shape[1] * keys.shape[2];
  for_each(call, rows(q), 4 * room * width, [&](std::int64_t r) {
    const std::int64_t token = r / q.shape[2];
    const std::int64_t head = (r % q.shape[2] + q.origin[2]) / group - keys.origin[1];
    const std::int64_t position = integers(call.inputs[4])[token];
    const double* const query = reals(q) + r * width;
    double* const out = reals(call.outputs[0]) + r * width;
    std::fill_n(out, width, 0.0);
    double highest = -INFINITY;
    std::vector<std::pair<double, std::int64_t>> seen;  // the score and the row of each visible position
    for (std::int64_t p = window > 0 ? std::max<std::int64_t>(0, position - window + 1) : 0; p <= position; ++p) {
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
