#include "core/device/cpu/vec_math.h"
#include "core/device/cpu/views.h"
#include "core/device/paging.h"
#include "core/device/query_heads.h"

// Attention to keys and values in pages. A task has some queries of one sequence, and some heads of keys with the heads
// of queries that share them. A row is one of these queries in one of these heads of queries. A task goes through the
// positions twice, in blocks: to compute the scores of all rows, and after the softmax to add up the values. So a task
// reads each key and each value once for all rows. A task of all heads reads each page from its beginning to its end,
// which is up to twice as fast as head by head.
//
// A query's result has the same bits whatever other queries are computed, and wherever its pages are. Blocks begin at
// multiples of `block_positions`. The query's position, the vector width and the head width decide the order of sums.

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

constexpr std::int64_t block_positions = 16;  // a multiple of every vector width
constexpr unsigned all_of_block = (1U << block_positions) - 1U;
constexpr std::int64_t most_queries = 8;         // queries of a task
constexpr std::int64_t most_scores = 512 << 10;  // floats of a task's scores, unless one query has more
constexpr std::int64_t row_gap = 16;             // unused floats between two rows of scores

std::int64_t smaller_of(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
std::int64_t larger_of(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
std::int64_t block_of(std::int64_t position) { return position / block_positions * block_positions; }

/// q, out: [batch, queries, heads, width]   keys, values: [pages, kv_heads, page, width]
struct PagedShape {
  PagedShape(const graph::Attributes& attributes, const std::int64_t* q, const std::int64_t* pages,
             const std::int64_t* table, int threads)
      : batch(q[0]),
        queries(q[1]),
        heads(q[2]),
        kv_heads(pages[1]),
        group(attributes.integer("group")),
        width(pages[3]),
        room(table[1] * pages[2]),
        window(attributes.integer("window")) {
    const std::int64_t most = smaller_of(most_queries, larger_of(queries, 1));
    if (most * heads * score_stride() > most_scores) {
      head_parts = larger_of(1, kv_heads);
    } else if (threads > 1) {
      const std::int64_t tasks = larger_of(1, batch * ((queries + most - 1) / most));
      head_parts = larger_of(1, smaller_of(kv_heads, (4 * threads + tasks - 1) / tasks));
    }
  }

  std::int64_t batch;
  std::int64_t queries;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t group;
  std::int64_t width;
  std::int64_t room;            ///< positions of a sequence
  std::int64_t window;          ///< 0: no window
  std::int64_t head_parts = 1;  ///< tasks that share the heads of a query: several if threads or memory ask for it

  [[nodiscard]] std::int64_t heads_of_task() const {
    return smaller_of(heads, (kv_heads + head_parts - 1) / head_parts * group);
  }
  /// Floats from one row of scores to the next: whole blocks for all that a query sees, and a gap.
  [[nodiscard]] std::int64_t score_stride() const {
    const std::int64_t seen = window > 0 ? smaller_of(room, window + block_positions - 1) : room;
    return block_of(seen + block_positions - 1) + row_gap;
  }
  [[nodiscard]] std::int64_t queries_of_task() const {
    const std::int64_t fit = most_scores / (larger_of(heads_of_task(), 1) * score_stride());
    return larger_of(1, smaller_of(smaller_of(most_queries, queries), fit));
  }
  [[nodiscard]] std::int64_t query_parts() const { return (queries + queries_of_task() - 1) / queries_of_task(); }
  [[nodiscard]] std::int64_t tasks() const { return batch * head_parts * query_parts(); }
  [[nodiscard]] std::int64_t rows() const { return queries_of_task() * heads_of_task(); }
  /// One thread's scratch: the scores, the query and the result of each row of a task, and a block of keys or values.
  [[nodiscard]] std::int64_t scratch_floats() const {
    return rows() * (score_stride() + 2 * width) + block_positions * width;
  }
};

/// Copies a row of a page in halves of vectors. Whole vectors were slower where a vector is a cache line, because the
/// processor then read ahead less.
SHARDRUN_INLINE void copy_row(const float* from, float* to, std::int64_t width) {
  std::int64_t i = 0;
  for (; i + lanes / 2 <= width; i += lanes / 2) {
    halfvec v;
    __builtin_memcpy(&v, from + i, sizeof(v));
    __builtin_memcpy(to + i, &v, sizeof(v));
  }
  vectors(i, width, [=](auto at) { store(to, at, load(from, at)); });
}
SHARDRUN_INLINE void copy_row(Bfloats from, float* to, std::int64_t width) {
  vectors(0, width, [=](auto at) { store(to, at, load(from, at)); });
}

/// Copies the rows at the positions `part` of a block to `to`, as float32. Bit i of the result is set if position
/// block + i is in `part` and on a page.
SHARDRUN_INLINE unsigned copy_block(Reals pages, const Paging& paging, std::int64_t sequence, std::int64_t head,
                                    std::int64_t block, const Sight& part, std::int64_t width, float* to) {
  unsigned found = 0;
  for (std::int64_t position = part.first; position < part.last;) {
    const std::int64_t end = smaller_of(part.last, (position / paging.page + 1) * paging.page);
    const std::int64_t row = paging.row(sequence, position, head);
    for (std::int64_t i = 0; row >= 0 && position + i < end; ++i) {
      const Reals from = pages + (row + i * width);
      float* const room = to + (position + i - block) * width;
      if (from.bfloat) {
        copy_row(from.bfloats(), room, width);
      } else {
        copy_row(from.floats(), room, width);
      }
      found |= 1U << (position + i - block);
    }
    position = end;
  }
  return found;
}

/// Computes the scores of one query for a block of keys.
SHARDRUN_INLINE void score_block(const float* query, const float* keys, std::int64_t width, float scale,
                                 float* scores) {
  vec products[block_positions];
  for (std::int64_t i = 0; i < block_positions; i += 4) {
    const float* const k0 = keys + i * width;
    const float* const k1 = keys + (i + 1) * width;
    const float* const k2 = keys + (i + 2) * width;
    const float* const k3 = keys + (i + 3) * width;
    vec s0 = {};
    vec s1 = {};
    vec s2 = {};
    vec s3 = {};
    vectors(0, width, [&](auto at) {
      const vec q = load(query, at);
      s0 += q * load(k0, at);
      s1 += q * load(k1, at);
      s2 += q * load(k2, at);
      s3 += q * load(k3, at);
    });
    products[i] = s0;
    products[i + 1] = s1;
    products[i + 2] = s2;
    products[i + 3] = s3;
  }
  for (std::int64_t i = 0; i < block_positions; i += lanes) {
    store(scores, Whole{i}, sums_of_lanes(products + i) * scale);
  }
}

/// Adds the `seen` rows of a block times their weights to `out`. The terms of a block are added up first.
template <int count, typename At>
SHARDRUN_INLINE void add_columns(float* out, const float* weights, const float* values, std::int64_t width,
                                 unsigned seen, At at) {
  vec sums[count] = {};
  const auto add = [&](std::int64_t i) {
    const vec weight = splat(weights[i]);
    for (int c = 0; c < count; ++c) {
      sums[c] += weight * load(values + i * width + c * lanes, at);
    }
  };
  if (seen == all_of_block) {
    for (std::int64_t i = 0; i < block_positions; ++i) {
      add(i);
    }
  } else {
    for (std::int64_t i = 0; i < block_positions; ++i) {
      if ((seen >> i & 1U) != 0) {
        add(i);
      }
    }
  }
  for (int c = 0; c < count; ++c) {
    store(out + c * lanes, at, load(out + c * lanes, at) + sums[c]);
  }
}
SHARDRUN_INLINE void add_block(float* out, const float* weights, const float* values, unsigned seen,
                               std::int64_t width) {
  std::int64_t i = 0;
  for (; i + 4 * lanes <= width; i += 4 * lanes) {
    add_columns<4>(out, weights, values, width, seen, Whole{i});
  }
  vectors(i, width, [=](auto at) { add_columns<1>(out, weights, values, width, seen, at); });
}

/// One call of the op.
struct PagedAttention {
  explicit PagedAttention(const KernelCall& call)
      : shape(call.attributes, call.inputs[0].shape.data(), call.inputs[1].shape.data(), call.inputs[3].shape.data(),
              call.threads.count()),
        heads{.count = shape.heads,
              .group = shape.group,
              .skipped = call.inputs[0].origin[2] - call.inputs[1].origin[1] * shape.group},
        q(reals<Reals>(call.inputs[0])),
        keys(reals<Reals>(call.inputs[1])),
        values(reals<Reals>(call.inputs[2])),
        out(reals<Reals>(call.outputs[0])),
        paging(paging_of(call.inputs[1], call.inputs[3])),
        positions(integers(call.inputs[4])) {
    const auto given = static_cast<float>(call.attributes.real("scale"));
    scale = given != 0 ? given : 1.0F / __builtin_sqrtf(static_cast<float>(shape.width));
  }

  PagedShape shape;
  QueryHeads heads;
  Reals q;
  Reals keys;
  Reals values;
  Reals out;
  Paging paging;
  const std::int32_t* positions;
  float scale;
};

/// The queries [begin, end) of a sequence, and the heads [first_head, last_head) of keys.
struct PagedTask {
  PagedTask(const PagedShape& at, std::int64_t number)
      : sequence(number / at.query_parts() / at.head_parts),
        begin(number % at.query_parts() * at.queries_of_task()),
        end(smaller_of(at.queries, begin + at.queries_of_task())) {
    const std::int64_t part = number / at.query_parts() % at.head_parts;
    first_head = at.kv_heads * part / at.head_parts;
    last_head = at.kv_heads * (part + 1) / at.head_parts;
  }

  std::int64_t sequence;
  std::int64_t begin;
  std::int64_t end;
  std::int64_t first_head;
  std::int64_t last_head;
};

Sight sight_of_query(const PagedAttention& on, const PagedTask& task, std::int64_t query) {
  const std::int64_t position = on.positions[task.sequence * on.shape.queries + query];
  return sight_of(position, on.shape.window, on.shape.room);
}

/// Estimates a task's time: the positions that each of its queries sees, times the heads of keys.
std::int64_t cost_of(const PagedAttention& on, const PagedTask& task) {
  std::int64_t cost = 1;
  for (std::int64_t query = task.begin; query < task.end; ++query) {
    const Sight sight = sight_of_query(on, task, query);
    cost += (sight.last - sight.first) * (task.last_head - task.first_head);
  }
  return cost;
}

/// A task's rows: one for each of its queries and each of its heads of queries.
class TaskRows {
 public:
  TaskRows(const PagedAttention& on, const PagedTask& task, float* scratch)
      : on_(on),
        task_(task),
        first_(first_of(task.first_head)),
        heads_(first_of(task.last_head) - first_),
        scores_(scratch),
        queries_(scores_ + on.shape.rows() * on.shape.score_stride()),
        results_(queries_ + on.shape.rows() * on.shape.width),
        room_(results_ + on.shape.rows() * on.shape.width) {
    for (std::int64_t query = task.begin; query < task.end; ++query) {
      const Sight sight = sight_of_query(on, task, query);
      sights_[query - task.begin] = sight;
      if (sight.first < sight.last) {
        all_ = all_.first < all_.last ? Sight{smaller_of(all_.first, sight.first), larger_of(all_.last, sight.last)}
                                      : sight;
      }
    }
  }

  /// Computes the task. `fixed` is the width of heads, for which compilers unroll loops; 0: any width.
  template <std::int64_t fixed>
  void compute() const {
    const std::int64_t width = fixed != 0 ? fixed : on_.shape.width;
    each_row([&](const Sight&, std::int64_t row, std::int64_t element) {
      const Reals from = on_.q + element;
      float* const query = queries_ + row * width;
      float* const result = results_ + row * width;
      vectors(0, width, [=](auto at) {
        store(query, at, load(from, at));
        store(result, at, vec{});
      });
    });
    each_block(on_.keys, width, [&](const float* keys, unsigned seen, std::int64_t row, float* scores) {
      score_block(queries_ + row * width, keys, width, on_.scale, scores);
      for (std::int64_t i = 0; seen != all_of_block && i < block_positions; ++i) {
        scores[i] = (seen >> i & 1U) != 0 ? scores[i] : lowest;
      }
    });
    each_row([&](const Sight& sight, std::int64_t row, std::int64_t) {
      turn_into_weights(scores_of(row), block_of(sight.last + block_positions - 1) - block_of(sight.first));
    });
    each_block(on_.values, width, [&](const float* values, unsigned seen, std::int64_t row, const float* weights) {
      add_block(results_ + row * width, weights, values, seen, width);
    });
    each_row([&](const Sight&, std::int64_t row, std::int64_t element) {
      const Reals to = on_.out + element;
      const float* const result = results_ + row * width;
      vectors(0, width, [=](auto at) { store(to, at, load(result, at)); });
    });
  }

 private:
  [[nodiscard]] float* scores_of(std::int64_t row) const { return scores_ + row * on_.shape.score_stride(); }

  /// The first of this shard's heads of queries that use a head of keys from `head` on.
  [[nodiscard]] std::int64_t first_of(std::int64_t head) const {
    return larger_of(0, smaller_of(on_.heads.count, on_.heads.of(head, 0)));
  }

  /// Calls use(sight, row, element) for each row. `sight`: the positions that its query sees. `element`: its first in
  /// q.
  template <typename Use>
  SHARDRUN_INLINE void each_row(const Use& use) const {
    for (std::int64_t query = task_.begin; query < task_.end; ++query) {
      const std::int64_t token = task_.sequence * on_.shape.queries + query;
      for (std::int64_t head = 0; head < heads_; ++head) {
        use(sights_[query - task_.begin], (query - task_.begin) * heads_ + head,
            (token * on_.shape.heads + first_ + head) * on_.shape.width);
      }
    }
  }

  /// Calls use(block, seen, row, scores) for each block of each head of keys, and each row whose query sees some of it.
  /// `seen`: bits of the positions that the query sees. `scores`: the row's scores at the block's positions.
  template <typename Use>
  SHARDRUN_INLINE void each_block(const Reals& pages, std::int64_t width, const Use& use) const {
    const std::int64_t step = block_of(on_.paging.page + block_positions - 1);  // so that pages are read in order
    for (std::int64_t first = block_of(all_.first); first < all_.last; first += step) {
      for (std::int64_t head = task_.first_head; head < task_.last_head; ++head) {
        for (std::int64_t block = first; block < smaller_of(first + step, all_.last); block += block_positions) {
          const unsigned found =
              copy_block(pages, on_.paging, task_.sequence, head, block, part_of(all_, block), width, room_);
          use_block(head, block, found, use);
        }
      }
    }
  }
  template <typename Use>
  SHARDRUN_INLINE void use_block(std::int64_t head, std::int64_t block, unsigned found, const Use& use) const {
    const std::int64_t first = first_of(head) - first_;
    const std::int64_t last = first_of(head + 1) - first_;
    for (std::int64_t query = 0; query < task_.end - task_.begin; ++query) {
      const Sight part = part_of(sights_[query], block);
      if (part.first >= part.last) {
        continue;
      }
      const unsigned seen =
          found & (all_of_block << (part.first - block)) & (all_of_block >> (block + block_positions - part.last));
      for (std::int64_t row = query * heads_ + first; row < query * heads_ + last; ++row) {
        use(room_, seen, row, scores_of(row) + block - block_of(sights_[query].first));
      }
    }
  }

  /// The positions of a block that are in `sight`.
  static Sight part_of(const Sight& sight, std::int64_t block) {
    return {larger_of(sight.first, block), smaller_of(sight.last, block + block_positions)};
  }

  /// Turns `count` scores into their softmax.
  static void turn_into_weights(float* scores, std::int64_t count) {
    const float max = largest_of(count, [=](auto at) { return load(scores, at); });
    const float sum = sum_of(count, [=](auto at) {
      const vec e = exp(load(scores, at) - max);
      store(scores, at, e);
      return e;
    });
    const float inverse = 1.0F / sum;
    vectors(0, count, [=](auto at) { store(scores, at, load(scores, at) * inverse); });
  }

  const PagedAttention& on_;
  const PagedTask& task_;
  std::int64_t first_;  ///< the first head of queries
  std::int64_t heads_;
  float* scores_;
  float* queries_;
  float* results_;
  float* room_;  ///< for a block of keys or values
  Sight sights_[most_queries];
  Sight all_ = {0, 0};  ///< from the first to the last position that any query sees
};

/// q, keys, values, table, positions -> out. Threads share the tasks so that all have about the same work.
void paged_attention(const KernelCall& call) {
  if (call.outputs[0].elements() == 0) {
    return;
  }
  const PagedAttention on(call);
  std::int64_t total = 0;
  for (std::int64_t task = 0; task < on.shape.tasks(); ++task) {
    total += cost_of(on, {on.shape, task});
  }
  const std::int64_t worthwhile = total * on.shape.group * on.shape.width / (1 << 17) + 1;
  const std::int64_t parts = smaller_of(smaller_of(on.shape.tasks(), worthwhile), call.threads.count());
  auto* const scratch = reinterpret_cast<float*>(call.scratch.data());
  call.threads.run(static_cast<int>(parts), [&](int part) {
    std::int64_t before = 0;
    for (std::int64_t number = 0; number < on.shape.tasks(); ++number) {
      const PagedTask task(on.shape, number);
      if (before * parts / total == part) {
        const TaskRows rows(on, task, scratch + part * on.shape.scratch_floats());
        on.shape.width == 64 ? rows.compute<64>() : on.shape.width == 128 ? rows.compute<128>() : rows.compute<0>();
      }
      before += cost_of(on, task);
    }
  });
}

std::size_t paged_attention_scratch(const graph::OpShape& shape, int threads) {
  const PagedShape at(shape.attributes, shape.inputs[0].shape.data(), shape.inputs[1].shape.data(),
                      shape.inputs[3].shape.data(), threads);
  const std::int64_t parts = at.heads > 0 && at.queries > 0 ? smaller_of(at.tasks(), threads) : 0;
  return static_cast<std::size_t>(parts * at.scratch_floats()) * sizeof(float);
}

/// pages, x, table, positions -> pages. Of tokens with the same place, the last one stays. Threads share the heads.
void write_pages(const KernelCall& call) {
  const TensorView& x = call.inputs[1];
  const Paging paging = paging_of(call.inputs[0], call.inputs[2]);
  const auto pages = reals<Reals>(call.inputs[0]);
  const auto tokens = reals<Reals>(x);
  const auto to = reals<Reals>(call.outputs[0]);
  if (to.data != pages.data) {
    call.threads.split(call.outputs[0].elements(), grain, [=](std::int64_t begin, std::int64_t end) {
      vectors(begin, end, [=](auto at) { store(to, at, load(pages, at)); });
    });
  }
  const std::int32_t* const positions = integers(call.inputs[3]);
  const std::int64_t count = x.shape[0] * x.shape[1];
  const std::int64_t queries = x.shape[1];
  const std::int64_t heads = x.shape[2];
  call.threads.split(heads, row_grain(count * paging.width), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = 0; token < count; ++token) {
      for (std::int64_t head = begin; head < end; ++head) {
        const std::int64_t row = paging.row(token / queries, positions[token], head);
        if (row >= 0) {
          const Reals from = tokens + (token * heads + head) * paging.width;
          vectors(0, paging.width, [=](auto at) { store(to + row, at, load(from, at)); });
        }
      }
    }
  });
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(paged_attention, {"paged_attention", {paged_attention, paged_attention_scratch}},
                 {"write_pages", {.run = write_pages}})
