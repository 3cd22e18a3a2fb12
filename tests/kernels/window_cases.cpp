#include "core/graph/sliding.h"
#include "tests/kernels/case.h"

// Cases of ops that slide a window along dimensions.

namespace shardrun::test {
namespace {

using Dims = std::vector<std::int64_t>;

struct Conv {
  Shape x;
  Shape w;
  Dims strides;
  Dims padding;
  Dims dilation;
  std::int64_t groups = 1;
};

Dims sliding_sizes(const Shape& shape) { return {shape.begin() + 2, shape.end()}; }

void add_conv(std::vector<Case>& cases, const Conv& conv) {
  const graph::Attributes attributes = {
      {"strides", conv.strides}, {"padding", conv.padding}, {"dilation", conv.dilation}, {"groups", conv.groups}};
  Shape y = {conv.x[0], conv.w[0]};
  const std::vector<graph::Sliding> slidings = graph::sliding_of(attributes, sliding_sizes(conv.w));
  for (std::size_t d = 0; d < slidings.size(); ++d) {
    y.push_back(slidings[d].result_size(conv.x[2 + d]));
  }
  const std::string axes = conv.x.size() == 4 ? "a0,a1,a2,a3" : "a0,a1,a2";
  graph::Attributes of_input = attributes;
  of_input.add("sizes", sliding_sizes(conv.x));
  of_input.add("axes", axes);
  graph::Attributes of_weights = attributes;
  of_weights.add("sizes", sliding_sizes(conv.w));
  of_weights.add("axes", axes);
  cases.push_back({"conv", attributes, {normal(conv.x), normal(conv.w)}});
  cases.push_back({"conv_gradient_input", of_input, {normal(y), normal(conv.w)}});
  cases.push_back({"conv_gradient_weights", of_weights, {normal(y), normal(conv.x)}});
}

struct Pool {
  Shape x;
  Dims size;
  Dims strides;
  Dims padding;
};

void add_pool(std::vector<Case>& cases, const Pool& pool) {
  const graph::Attributes attributes = {{"size", pool.size}, {"strides", pool.strides}, {"padding", pool.padding}};
  Shape y = pool.x;
  const std::vector<graph::Sliding> slidings = graph::sliding_of(attributes, pool.size);
  const Dims sizes(pool.x.end() - static_cast<std::ptrdiff_t>(slidings.size()), pool.x.end());
  for (std::size_t d = 0; d < slidings.size(); ++d) {
    y[y.size() - slidings.size() + d] = slidings[d].result_size(sizes[d]);
  }
  graph::Attributes of_gradient = attributes;
  of_gradient.add("sizes", sizes);
  cases.push_back({"max_pool", attributes, {normal(pool.x)}});
  cases.push_back({"max_pool_gradient", of_gradient, {normal(y), integers_below<12>(y)}});
  for (const std::int64_t counts : {0, 1}) {
    graph::Attributes counting = attributes;
    counting.add("counts_padding", counts);
    cases.push_back({"average_pool", counting, {normal(pool.x)}});
    counting.add("sizes", sizes);
    cases.push_back({"average_pool_gradient", counting, {normal(y)}});
  }
}

}  // namespace

void add_window_cases(std::vector<Case>& cases) {
  const std::vector<Conv> convs = {{{1, 1, 1}, {1, 1, 1}, {1}, {0, 0}, {1}},
                                   {{2, 3, 7}, {2, 3, 3}, {1}, {1, 1}, {1}},
                                   {{2, 2, 11}, {3, 2, 3}, {2}, {0, 1}, {2}},
                                   {{1, 4, 9}, {6, 2, 2}, {3}, {1, 0}, {1}, 2},
                                   {{1, 2, 7}, {2, 2, 1}, {1}, {0, 1}, {1}},
                                   {{2, 3, 5, 5}, {2, 3, 1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
                                   {{1, 2, 6, 7}, {3, 2, 3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
                                   {{1, 2, 9, 7}, {2, 2, 3, 2}, {2, 3}, {1, 0, 0, 1}, {1, 1}},
                                   {{1, 2, 8, 6}, {2, 2, 2, 3}, {1, 2}, {2, 1, 0, 2}, {3, 1}},
                                   {{1, 2, 7, 7}, {2, 2, 1, 1}, {2, 2}, {0, 0, 0, 0}, {1, 1}},
                                   {{2, 4, 4, 5}, {4, 1, 3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 4},
                                   {{1, 6, 5, 4}, {4, 3, 2, 2}, {2, 1}, {0, 0, 1, 0}, {1, 2}, 2},
                                   {{2, 3, 37, 29}, {17, 3, 7, 7}, {2, 2}, {3, 3, 3, 3}, {1, 1}},
                                   {{3, 33, 13, 15}, {19, 33, 3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
                                   {{2, 65, 9, 11}, {33, 65, 1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
                                   {{1, 16, 70, 150}, {8, 16, 5, 5}, {1, 1}, {2, 2, 2, 2}, {1, 1}}};
  for (const Conv& conv : convs) {
    add_conv(cases, conv);
  }
  const std::vector<Pool> pools = {{{1}, {1}, {1}, {0, 0}},
                                   {{7}, {2}, {2}, {0, 0}},
                                   {{2, 3, 11}, {3}, {2}, {1, 0}},
                                   {{3, 5, 4}, {2, 2}, {2, 2}, {0, 0, 0, 0}},
                                   {{2, 2, 6, 7}, {3, 3}, {2, 2}, {1, 1, 1, 1}},
                                   {{2, 1, 9, 5}, {4, 3}, {1, 2}, {0, 3, 2, 1}},
                                   {{1, 2, 8, 7}, {2, 1}, {3, 2}, {1, 0, 0, 0}},
                                   {{2, 3, 5, 5}, {5, 5}, {1, 1}, {0, 0, 0, 0}},
                                   {{3, 7, 41, 33}, {3, 3}, {2, 2}, {1, 1, 1, 1}}};
  for (const Pool& pool : pools) {
    add_pool(cases, pool);
  }
  cases.push_back({"max_pool",  // with equal elements, which have no central differences; so it may be large
                   {{"size", Dims{3, 3}}, {"strides", Dims{2, 2}}, {"padding", Dims{1, 1, 1, 1}}},
                   {few_values({3, 7, 41, 33})}});
}

}  // namespace shardrun::test
