// Keys and values in pages. The result of a query has the same bits whatever else is computed in the call, and wherever
// its pages are.

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "core/device/elements.h"
#include "tests/kernels/compare.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::test;
using graph::DType;

namespace {

constexpr std::int64_t kv_heads = 2;
constexpr std::int64_t group = 3;

/// A sequence's queries, keys and values, each [positions, heads, width].
struct Sequence {
  Sequence(std::int64_t length, std::int64_t width, std::uint64_t seed)
      : q(zeros(type_of({length, kv_heads * group, width}))),
        keys(zeros(type_of({length, kv_heads, width}))),
        values(keys) {
    Random random(seed);
    for (Tensor* tensor : {&q, &keys, &values}) {
      random.fill_normal(*tensor, 0, 1);
    }
  }
  [[nodiscard]] std::int64_t length() const { return q.type.shape[0]; }
  [[nodiscard]] std::int64_t width() const { return q.type.shape[2]; }

  Tensor q;
  Tensor keys;
  Tensor values;
};

/// The queries [first, last) of each sequence are computed in one call. Shorter sequences have no tokens there.
struct Setting {
  std::vector<const Sequence*> sequences;
  std::int64_t first;
  std::int64_t last;
  std::int64_t page = 16;
  std::uint64_t seed = 0;   ///< 0: pages lie in order
  std::int64_t unused = 0;  ///< entries of the table after the longest sequence's pages
  std::int64_t window = 0;
  DType dtype = DType::f32;
};

/// Sequences as rows of one batch, in the setting's type: [batch, last - first, heads, width].
/// Zeros stand for no token.
Tensor batch_of(const Setting& in, Tensor Sequence::*tensor, std::int64_t first, std::int64_t last) {
  std::vector<Tensor> rows;
  for (const Sequence* sequence : in.sequences) {
    Tensor from = sequence->*tensor;
    device::round_elements(in.dtype, from.values);
    const std::int64_t heads = from.type.shape[1];
    Tensor row = zeros(type_of({1, last - first, heads, sequence->width()}, in.dtype));
    const std::int64_t row_elements = heads * sequence->width();
    const std::int64_t end = std::min(last, sequence->length());
    for (std::int64_t i = first * row_elements; i < end * row_elements; ++i) {
      row.values[static_cast<std::size_t>(i - first * row_elements)] = from.values[static_cast<std::size_t>(i)];
    }
    rows.push_back(std::move(row));
  }
  return concatenate(rows, 0);
}

Tensor positions_of(const Setting& in, std::int64_t first, std::int64_t last) {
  Tensor positions = zeros(type_of({static_cast<std::int64_t>(in.sequences.size()), last - first}, DType::i32));
  for (std::size_t i = 0; i < positions.values.size(); ++i) {
    const std::int64_t position = first + static_cast<std::int64_t>(i) % (last - first);
    const bool is_token = position < in.sequences[i / static_cast<std::size_t>(last - first)]->length();
    positions.values[i] = is_token ? static_cast<double>(position) : -1;
  }
  return positions;
}

/// Each sequence has enough pages for its length. The other entries of its row name no page. One page belongs to
/// no sequence.
Tensor table_of(const Setting& in) {
  std::int64_t pages = 1;
  std::int64_t longest = 0;
  for (const Sequence* sequence : in.sequences) {
    pages += (sequence->length() + in.page - 1) / in.page;
    longest = std::max(longest, (sequence->length() + in.page - 1) / in.page);
  }
  std::vector<std::int64_t> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  Random random(in.seed);
  for (std::size_t i = order.size(); in.seed != 0 && i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  }
  longest += in.unused;
  Tensor table = zeros(type_of({static_cast<std::int64_t>(in.sequences.size()), longest}, DType::i32));
  for (std::size_t b = 0; b < in.sequences.size(); ++b) {
    for (std::int64_t i = 0; i < longest; ++i) {
      double& entry = table.values[b * static_cast<std::size_t>(longest) + static_cast<std::size_t>(i)];
      entry = i * in.page < in.sequences[b]->length() ? static_cast<double>(order.back()) : -1;
      if (entry >= 0) {
        order.pop_back();
      }
    }
  }
  return table;
}

/// Pages with NaN wherever no sequence has a position.
Tensor written_pages(const device::Device& device, const Setting& in, const Tensor& table, Tensor Sequence::*tensor) {
  const std::int64_t longest = (*std::ranges::max_element(in.sequences, {}, &Sequence::length))->length();
  const auto pages =
      static_cast<std::int64_t>(std::ranges::count_if(table.values, [](double entry) { return entry >= 0; }));
  Tensor empty = zeros(type_of({pages + 1, kv_heads, in.page, in.sequences[0]->width()}, in.dtype));
  std::ranges::fill(empty.values, std::numeric_limits<double>::quiet_NaN());
  const std::vector<Tensor> inputs = {empty, batch_of(in, tensor, 0, longest), table, positions_of(in, 0, longest)};
  const std::vector<Tensor> outputs = {empty};
  return execute(device, {.op = "write_pages", .attributes = {}, .inputs = inputs, .outputs = outputs})[0];
}

/// The results of the setting's sequence number `which`: [1, queries, heads, width].
Tensor attend(const device::Device& device, const Setting& in, std::size_t which, int threads = 1,
              const device::Kernel* kernel = nullptr) {
  const Tensor table = table_of(in);
  const graph::Attributes attributes = {{"group", group}, {"window", in.window}, {"scale", 0.0}};
  const std::vector<Tensor> inputs = {
      batch_of(in, &Sequence::q, in.first, in.last), written_pages(device, in, table, &Sequence::keys),
      written_pages(device, in, table, &Sequence::values), table, positions_of(in, in.first, in.last)};
  const std::vector<Tensor> outputs = {inputs[0]};
  const Tensor all = execute(device, {.op = "paged_attention",
                                      .attributes = attributes,
                                      .inputs = inputs,
                                      .outputs = outputs,
                                      .threads = threads,
                                      .kernel = kernel})[0];
  return slice(all, 0, static_cast<std::int64_t>(which), static_cast<std::int64_t>(which) + 1);
}

/// A sequence alone, with and without a window, in both types; of heads whose width the kernels know (64),
/// and of others.
template <typename Check>
void for_each_setting(const Check& check) {
  for (const auto& [width, window, dtype] : std::initializer_list<std::tuple<std::int64_t, std::int64_t, DType>>{
           {40, 0, DType::f32}, {40, 37, DType::bf16}, {64, 37, DType::f32}, {64, 0, DType::bf16}}) {
    INFO("width " << width << ", window " << window << ", " << graph::to_string(dtype));
    const Sequence sequence(150, width, 1);
    check(Setting{.sequences = {&sequence}, .first = 0, .last = 150, .window = window, .dtype = dtype});
  }
}

}  // namespace

TEST_CASE("a query has the same bits alone and in a call with all queries of its sequence", "[kernels]") {
  for_each_setting([&](const Setting& all) {
    const Tensor expected = attend(reference(), all, 0);
    for (const device::cpu::LevelKernel& variant : variants("paged_attention")) {
      INFO("instruction set " << variant.level);
      const Tensor found = attend(fast(), all, 0, 1, &variant.kernel);
      CHECK(difference(found, expected, {.of_element = all.dtype == DType::bf16 ? 0x1p-7 : 0, .of_largest = 1e-6}) ==
            "");
      for (const std::int64_t first : {0, 1, 15, 16, 66, 149}) {
        INFO("position " << first);
        Setting one = all;
        one.first = first;
        one.last = first + 1;
        CHECK(difference(attend(fast(), one, 0, 1, &variant.kernel), slice(found, 1, first, first + 1), bit_for_bit) ==
              "");
      }
      Setting some = all;
      some.first = 3;
      some.last = 132;
      CHECK(difference(attend(fast(), some, 0, 2, &variant.kernel), slice(found, 1, 3, 132), bit_for_bit) == "");
    }
  });
}

TEST_CASE("a sequence has the same bits alone and among others, on any pages and on 1, 2 and 3 threads", "[kernels]") {
  for_each_setting([&](const Setting& alone) {
    const Sequence& sequence = *alone.sequences[0];
    const Sequence longer(171, sequence.width(), 2);
    const Sequence shorter(5, sequence.width(), 3);
    for (const device::cpu::LevelKernel& variant : variants("paged_attention")) {
      INFO("instruction set " << variant.level);
      const Tensor expected = attend(fast(), alone, 0, 1, &variant.kernel);
      for (const int threads : {1, 2, 3}) {
        for (const std::int64_t page : {16, 7, 64}) {
          INFO(threads << " threads, " << page << " positions on a page");
          Setting among = alone;
          among.sequences = {&longer, &shorter, &sequence};
          among.page = page;
          among.seed = 9;
          among.unused = page == 64 ? 700 : 0;
          CHECK(difference(attend(fast(), among, 2, threads, &variant.kernel), expected, bit_for_bit) == "");
        }
      }
    }
  });
}

TEST_CASE("CUDA: a query has the same bits alone and among others, with any context", "[kernels]") {
  const device::Device& emulated = device::Device::find("cuda-emulated");
  const Sequence sequence(600, 40, 1);
  const Sequence longer(610, 40, 2);
  const Sequence shorter(5, 40, 3);
  for (const std::int64_t window : {0, 550}) {
    INFO("window " << window);
    const Setting alone = {.sequences = {&sequence}, .first = 599, .last = 600, .window = window};
    const Tensor found = attend(emulated, alone, 0);
    CHECK(difference(found, attend(reference(), alone, 0), {.of_largest = 1e-6}) == "");
    Setting among = alone;
    among.sequences = {&longer, &shorter, &sequence};
    among.first = 597;
    among.page = 7;
    among.seed = 9;
    CHECK(difference(slice(attend(emulated, among, 2), 1, 2, 3), found, bit_for_bit) == "");
  }
}

TEST_CASE("of two tokens that are written to one place, the later one stays", "[kernels]") {
  const Tensor pages = zeros(type_of({2, kv_heads, 4, 3}));
  Tensor x = zeros(type_of({1, 4, kv_heads, 3}));
  Random(1).fill_normal(x, 0, 1);
  Tensor table = zeros(type_of({1, 1}, DType::i32));
  table.values = {1};
  Tensor positions = zeros(type_of({1, 4}, DType::i32));
  positions.values = {2, 0, 2, 0};
  Tensor expected = pages;
  for (std::size_t i = 0; i < 2 * kv_heads * 3; ++i) {
    const std::size_t token = i / 6;
    const std::size_t head = i / 3 % 2;
    expected.values[24 + head * 12 + (token == 0 ? 2 : 0) * 3 + i % 3] = x.values[12 + i];
  }
  const std::vector<Tensor> inputs = {pages, x, table, positions};
  for (const char* name : {"cpu", "cuda-emulated", "reference"}) {
    INFO(name);
    CHECK(difference(execute(device::Device::find(name),
                             {.op = "write_pages", .attributes = {}, .inputs = inputs, .outputs = {pages}}),
                     {expected}, bit_for_bit) == "");
  }
}
