#pragma once

#include "core/device/cpu/views.h"

/// Sizes of attention, where its operands lie, and which keys a query sees.
namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

inline constexpr std::int64_t tile_rows = 32;
inline constexpr std::int64_t row_gap = 16;  // floats between two rows of scores, which nothing touches

inline std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
inline std::int64_t larger_of(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

/// One head of one sequence. `head` is that of keys and values, which a group of heads of queries shares.
struct Head {
  std::int64_t sequence;
  std::int64_t head;
  std::int64_t group;
};

/// Where a head's rows lie in a tensor, in elements.
struct HeadRows {
  std::int64_t of_sequence;
  std::int64_t of_row;
  std::int64_t of_head;
  std::int64_t of_group = 0;
  std::int64_t first = 0;

  [[nodiscard]] std::int64_t begin(const Head& at) const {
    return first + at.sequence * of_sequence + at.head * of_head + at.group * of_group;
  }
};

/// Keys [first, last).
struct Keys {
  std::int64_t first;
  std::int64_t last;
};

struct AttentionShape {
  std::int64_t batch;
  std::int64_t queries;
  std::int64_t keys;
  std::int64_t heads;  ///< of keys and values
  std::int64_t group;  ///< heads of queries for each
  std::int64_t width;
  HeadRows q;
  HeadRows k;
  HeadRows v;
  HeadRows out;
  bool causal = true;
  std::int64_t window = 0;  ///< 0: none
  float scale = 0;
  std::int64_t first_query = 0;  ///< the global index of this shard's first query

  [[nodiscard]] Keys visible(std::int64_t query) const {
    const std::int64_t position = first_query + query;
    const std::int64_t from = window > 0 ? larger_of(0, position - window + 1) : 0;
    const std::int64_t to = causal ? position + 1 : window > 0 ? position + window : keys;
    return {from, smaller(to, keys)};
  }
  /// What queries [begin, end) see together.
  [[nodiscard]] Keys visible(std::int64_t begin, std::int64_t end) const {
    return {visible(begin).first, visible(end - 1).last};
  }
  /// The most keys that a tile of queries sees.
  [[nodiscard]] std::int64_t span() const {
    return window > 0 ? smaller(keys, (causal ? window : 2 * window) + tile_rows) : keys;
  }

  [[nodiscard]] std::int64_t tile() const { return smaller(tile_rows, queries); }
  /// Floats from one row of scores to the next: whole vectors of any instruction set, and no power of two.
  [[nodiscard]] std::int64_t score_stride() const { return (span() + 15) / 16 * 16 + row_gap; }
  [[nodiscard]] std::int64_t tile_floats() const { return tile() * score_stride(); }

  /// Among how many threads `tasks` are shared; less than about 0.1 ms of work stays on one.
  [[nodiscard]] int parts(std::int64_t tasks, int threads) const {
    const std::int64_t work = batch * heads * group * queries * (span() + 16) * (width + 16);
    const std::int64_t worthwhile = work / (1 << 20) + 1;
    return static_cast<int>(smaller(smaller(tasks, worthwhile), threads));
  }
};

/// qkv: [B, T, 3, H, D]   out: [B, T, H, D]
inline AttentionShape packed_shape(const std::int64_t* qkv) {
  const std::int64_t length = qkv[1];
  const std::int64_t heads = qkv[3];
  const std::int64_t width = qkv[4];
  const std::int64_t row = heads * width;
  const auto part = [=](int number) {
    return HeadRows{.of_sequence = length * 3 * row, .of_row = 3 * row, .of_head = width, .first = number * row};
  };
  return {.batch = qkv[0],
          .queries = length,
          .keys = length,
          .heads = heads,
          .group = 1,
          .width = width,
          .q = part(0),
          .k = part(1),
          .v = part(2),
          .out = {.of_sequence = length * row, .of_row = row, .of_head = width},
          .scale = 1.0F / __builtin_sqrtf(static_cast<float>(width))};
}

/// q, out: [B, T, H, G, D]   k, v: [B, S, H, D]
inline AttentionShape separate_shape(const graph::Attributes& attributes, const std::int64_t* q,
                                     const std::int64_t* k) {
  const std::int64_t width = q[4];
  const std::int64_t row = q[2] * q[3] * width;
  const std::int64_t key_row = q[2] * width;
  const HeadRows of_queries = {.of_sequence = q[1] * row, .of_row = row, .of_head = q[3] * width, .of_group = width};
  const HeadRows of_keys = {.of_sequence = k[1] * key_row, .of_row = key_row, .of_head = width};
  const auto scale = static_cast<float>(attributes.real("scale"));
  return {.batch = q[0],
          .queries = q[1],
          .keys = k[1],
          .heads = q[2],
          .group = q[3],
          .width = width,
          .q = of_queries,
          .k = of_keys,
          .v = of_keys,
          .out = of_queries,
          .causal = attributes.integer("causal") == 1,
          .window = attributes.integer("window"),
          .scale = scale != 0 ? scale : 1.0F / __builtin_sqrtf(static_cast<float>(width))};
}

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
