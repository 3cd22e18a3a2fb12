#include <math.h>

#include "core/device/cuda/elementwise.h"
#include "core/device/paging.h"

// Keys and values in pages [pages, kv_heads, page, head_dim]; table: [batch, pages of a sequence]
// x: [batch, seq, kv_heads, head_dim]   q, out: [batch, seq, heads, head_dim]   positions: [batch, seq]

namespace shardrun::device::cuda {
namespace {

/// Writes a token's rows to its place. A block has one token. Of two tokens at one place, the later one stays.
struct WritePages {
  Reals x;
  Reals pages;
  Paging paging;
  const std::int32_t* positions;
  std::int64_t tokens;
  std::int64_t seq;

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t token = block.index();
    const std::int64_t place = place_of(token, 0);
    if (place < 0) {
      return;
    }
    int is_replaced = 0;
    for (std::int64_t later = token + 1 + block.thread(); later < tokens; later += block.threads()) {
      is_replaced |= place_of(later, 0) == place ? 1 : 0;
    }
    if (block_join(block, is_replaced, Larger{}) != 0) {
      return;
    }
    for (std::int64_t i = block.thread(); i < paging.heads * paging.width; i += block.threads()) {
      pages.set(place_of(token, i / paging.width) + i % paging.width, x.get(token * paging.heads * paging.width + i));
    }
  }

 private:
  SHARDRUN_ON_DEVICE std::int64_t place_of(std::int64_t token, std::int64_t head) const {
    return paging.row(token / seq, positions[token], head);
  }
};

/// pages, x, table, positions -> pages
void write_pages(const KernelCall& call) {
  const TensorView& x = call.inputs[1];
  if (call.inputs[0].data != call.outputs[0].data) {
    map<1>(call, Same{});
  }
  const std::int64_t tokens = x.elements() == 0 ? 0 : x.shape[0] * x.shape[1];
  launch(call, tokens, warp_size * 4, 0,
         WritePages{.x = reals(x),
                    .pages = reals(call.outputs[0]),
                    .paging = paging_of(call.outputs[0], call.inputs[2]),
                    .positions = integers(call.inputs[3]),
                    .tokens = tokens,
                    .seq = x.shape[1]});
}

/// softmax(q K^T scale) V over the positions that a query sees. Vaswani et al. 2017, arXiv:1706.03762, equation 1. A
/// block has one head of one query and loops over tiles of positions. Each thread computes the scores of some of them.
/// Then each group of threads adds the values of some of them. The block keeps the largest score so far, and rescales
/// its sums when that grows. The positions that the query sees alone decide the order of all sums.
template <int pack>
struct AttendPages {
  static constexpr int tile = 512;  ///< positions
  static constexpr int block_threads = 128;

  Reals q;
  Reals keys;
  Reals values;
  Reals out;
  Paging paging;
  const std::int32_t* positions;
  std::int64_t seq;
  std::int64_t heads;
  std::int64_t first_head;  ///< the number of the first head of queries, counted from the first head of keys
  std::int64_t group;
  std::int64_t window;
  float scale;

  [[nodiscard]] SHARDRUN_ON_BOTH int width() const { return static_cast<int>(paging.width); }
  [[nodiscard]] SHARDRUN_ON_BOTH int groups() const { return width() < block_threads ? block_threads / width() : 1; }
  [[nodiscard]] std::size_t shared() const {
    return shared_bytes<float>(width()) + shared_bytes<float>(groups() * width()) + shared_bytes<float>(tile) +
           shared_bytes<std::int64_t>(tile);
  }

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const Shared<float> query = block.shared<float>(width());
    const Shared<float> sums = block.shared<float>(groups() * width());
    const Shared<float> weights = block.shared<float>(tile);
    const Shared<std::int64_t> rows = block.shared<std::int64_t>(tile);
    const std::int64_t token = block.index() / heads;
    const std::int64_t head = (block.index() % heads + first_head) / group;
    const std::int64_t begin = block.index() * paging.width;
    for (int i = block.thread(); i < groups() * width(); i += block.threads()) {
      sums[i] = 0;
      if (i < width()) {
        query[i] = q.get(begin + i) * scale;
      }
    }
    block.sync();
    float largest = -HUGE_VALF;
    float total = 0;
    int found = 0;
    const Sight sight = sight_of(positions[token], window, paging.room());
    for (std::int64_t first = sight.first; first < sight.last; first += tile) {
      const int count = static_cast<int>(sight.last - first < tile ? sight.last - first : tile);
      float largest_here = -HUGE_VALF;
      for (int i = block.thread(); i < count; i += block.threads()) {
        const std::int64_t row = paging.row(token / seq, first + i, head);
        rows[i] = row;
        weights[i] = row < 0 ? -HUGE_VALF : score(query, row);
        found |= row < 0 ? 0 : 1;
        largest_here = Larger{}(largest_here, weights[i]);
      }
      const float grown = Larger{}(largest, block_join(block, largest_here, Larger{}));
      const float shift = grown == -HUGE_VALF ? 0.0F : grown;
      const float factor = FloatMath::exp(largest - shift);
      largest = grown;
      float added = 0;
      for (int i = block.thread(); i < count; i += block.threads()) {
        weights[i] = FloatMath::exp(weights[i] - shift);
        added += weights[i];
      }
      total = total * factor + block_sum(block, added);  // block_sum() waits until all weights are written
      add_values(block, rows, weights, count, factor, sums);
      block.sync();
    }
    const bool sees = block_join(block, found, Larger{}) != 0;
    for (int e = block.thread(); e < width(); e += block.threads()) {
      float sum = 0;
      for (int g = 0; g < groups(); ++g) {
        sum += sums[g * width() + e];
      }
      out.set(begin + e, sees ? sum / total : 0.0F);
    }
  }

 private:
  SHARDRUN_ON_DEVICE float score(const Shared<float>& query, std::int64_t row) const {
    float sum = 0;
    for (int e = 0; e < width(); e += pack) {
      const Pack<pack> key = keys.template get_pack<pack>(row + e);
      SHARDRUN_UNROLLED for (int i = 0; i < pack; ++i) { sum += query[e + i] * key[i]; }
    }
    return sum;
  }

  /// Group g adds the values at the positions g, g + groups(), …
  SHARDRUN_ON_DEVICE void add_values(Block& block, const Shared<std::int64_t>& rows, const Shared<float>& weights,
                                     int count, float factor, const Shared<float>& sums) const {
    for (int i = block.thread(); i < groups() * width(); i += block.threads()) {
      float sum = sums[i] * factor;
      for (int p = i / width(); p < count; p += groups()) {
        if (rows[p] >= 0) {
          sum += weights[p] * values.get(rows[p] + i % width());
        }
      }
      sums[i] = sum;
    }
  }
};

template <int pack>
void attend_pages(const KernelCall& call) {
  const TensorView& q = call.inputs[0];
  const auto given = static_cast<float>(call.attributes.real("scale"));
  const std::int64_t group = call.attributes.integer("group");
  const AttendPages<pack> body = {.q = reals(q),
                                  .keys = reals(call.inputs[1]),
                                  .values = reals(call.inputs[2]),
                                  .out = reals(call.outputs[0]),
                                  .paging = paging_of(call.inputs[1], call.inputs[3]),
                                  .positions = integers(call.inputs[4]),
                                  .seq = q.shape[1],
                                  .heads = q.shape[2],
                                  .first_head = q.origin[2] - call.inputs[1].origin[1] * group,
                                  .group = group,
                                  .window = call.attributes.integer("window"),
                                  .scale = given != 0 ? given : 1.0F / ::sqrtf(static_cast<float>(q.shape[3]))};
  launch(call, q.elements() == 0 ? 0 : rows(q), AttendPages<pack>::block_threads, body.shared(), body);
}

/// q, keys, values, table, positions -> out
void paged_attention(const KernelCall& call) {
  columns(call.inputs[0]) % pack_size == 0 && are_aligned(call) ? attend_pages<pack_size>(call) : attend_pages<1>(call);
}

const AddKernels paged({{"write_pages", {.run = write_pages}}, {"paged_attention", {.run = paged_attention}}});

}  // namespace
}  // namespace shardrun::device::cuda
