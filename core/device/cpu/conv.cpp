#include "core/device/cpu/conv.h"

#include <algorithm>
#include <memory>

#include "core/device/cpu/sgemm.h"

namespace shardrun::device::cpu {
namespace {

/// Positions per block if no matrix of columns is needed.
constexpr std::int64_t direct_positions = 4096;

std::vector<graph::Sliding> slidings_of(const graph::Attributes& attributes, const graph::TensorType& weights) {
  return sliding_of(attributes, {weights.shape.begin() + 2, weights.shape.end()});
}

/// Divides the rows of positions into blocks whose columns for `channels` channels are of about columns_block_bytes.
Blocked row_blocks(const ConvSizes& sizes, std::int64_t channels) {
  const std::size_t one = std::max<std::size_t>(1, sizes.matrix_bytes(channels, 1));
  const std::int64_t rows = sizes.direct ? direct_positions / std::max<std::int64_t>(1, sizes.columns)
                                         : static_cast<std::int64_t>(columns_block_bytes / one);
  return {sizes.rows, std::clamp<std::int64_t>(rows, 1, std::max<std::int64_t>(1, sizes.rows))};
}

}  // namespace

ConvSizes::ConvSizes(const graph::Attributes& attributes, const graph::TensorType& first,
                     const graph::TensorType& second, const std::vector<graph::Sliding>& slidings)
    : batch(first.shape[0]),
      groups(attributes.integer("groups")),
      read(first.shape[1] / groups),
      other(second.shape[1] / groups),
      rows(second.shape.size() == 4 ? second.shape[2] : 1),
      columns(second.shape.back()),
      dtype(first.dtype) {
  plane = graph::element_count(std::vector(first.shape.begin() + 2, first.shape.end()));
  direct = true;
  for (const graph::Sliding& s : slidings) {
    taps *= s.size;
    direct = direct && s.size == 1 && s.stride == 1 && s.low == 0 && s.high == 0;
  }
}

std::size_t ConvSizes::matrix_bytes(std::int64_t channels, std::int64_t row_count) const noexcept {
  return direct ? 0 : aligned(static_cast<std::size_t>(channels * taps * row_count * columns) * element_bytes());
}

ConvProducts::ConvProducts(const graph::OpShape& shape, bool transposed)
    : transposed_(transposed),
      slidings_(slidings_of(shape.attributes, shape.inputs[1])),
      sizes_(shape.attributes, shape.inputs[0], shape.outputs[0], slidings_),
      weights_(shape.inputs[1].dtype),
      result_(shape.outputs[0].dtype),
      rows_(row_blocks(sizes_, sizes_.read)),
      whole_(product(rows_.width)),
      rest_(product(rows_.size - (std::max<std::int64_t>(1, rows_.count()) - 1) * rows_.width)) {
  weight_bytes_ =
      transposed
          ? aligned(static_cast<std::size_t>(graph::element_count(shape.inputs[1])) * graph::element_bytes(weights_))
          : 0;
  columns_bytes_ = sizes_.matrix_bytes(sizes_.read, rows_.width);
  product_bytes_ = aligned(std::max(whole_.scratch_bytes(1), rest_.scratch_bytes(1)));
}

/// The product for `rows` rows of positions, without data.
Product ConvProducts::product(std::int64_t rows) const {
  const std::int64_t k = sizes_.read * sizes_.taps;
  const std::int64_t n = rows * sizes_.columns;
  return {sizes_.other,
          n,
          k,
          {nullptr, weights_, k},
          {nullptr, sizes_.dtype, sizes_.direct ? sizes_.plane : n},
          {nullptr, result_, sizes_.positions()}};
}

int ConvProducts::parts(int threads) const {
  return static_cast<int>(std::min<std::int64_t>(threads, sizes_.batch * sizes_.groups * rows_.count()));
}

std::size_t ConvProducts::scratch_bytes(int threads) const {
  return weight_bytes_ + static_cast<std::size_t>(parts(threads)) * (columns_bytes_ + product_bytes_);
}

/// Copies w [G, read, other, taps] to the scratch as [G, other, read, taps].
void ConvProducts::copy_weights(const KernelCall& call) const {
  const auto bytes = static_cast<std::size_t>(sizes_.taps) * graph::element_bytes(weights_);
  const auto* const from = static_cast<const std::byte*>(call.inputs[1].data);
  const std::int64_t lines = sizes_.read * sizes_.other;
  call.threads.split(sizes_.groups * sizes_.other, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t r = 0; r < sizes_.read; ++r) {
        const std::int64_t source = row / sizes_.other * lines + r * sizes_.other + row % sizes_.other;
        std::copy_n(from + static_cast<std::size_t>(source) * bytes, bytes,
                    call.scratch.data() + static_cast<std::size_t>(row * sizes_.read + r) * bytes);
      }
    }
  });
}

/// Computes one block of rows of one group of one image.
void ConvProducts::multiply(const KernelCall& call, const Columns& columns, std::int64_t item, std::byte* room) const {
  const RowRange rows = rows_.at(item % rows_.count());
  const std::int64_t group = item / rows_.count() % sizes_.groups;
  const std::int64_t image = item / rows_.count();  // counts groups too: [batch, groups, channels of a group]
  Product p = product(rows.end - rows.begin);
  auto* const weights = transposed_ ? call.scratch.data() : static_cast<std::byte*>(call.inputs[1].data);
  p.a = Operand{weights, weights_, p.k}.from(group * sizes_.other, 0);
  p.b.data = static_cast<std::byte*>(call.inputs[0].data) +
             static_cast<std::size_t>(image * sizes_.read * sizes_.plane) * sizes_.element_bytes();
  if (sizes_.direct) {
    p.b = p.b.from(0, rows.begin * sizes_.columns);
  } else {
    columns.write(p.b.data, sizes_.read, rows, room);
    p.b.data = room;
  }
  p.c.data = static_cast<std::byte*>(call.outputs[0].data);
  p.c = p.c.from(image * sizes_.other, rows.begin * sizes_.columns);
  const PreparedProduct& prepared = rows.end - rows.begin == rows_.width ? whole_ : rest_;
  prepared.run_alone(p, false, room + columns_bytes_);
}

void ConvProducts::run(const KernelCall& call) {
  const std::array<Taps, 2> taps = transposed_ ? transposed_taps(slidings_, call.inputs[0], call.outputs[0])
                                               : taps_of(slidings_, call.inputs[0], call.outputs[0]);
  const Columns columns(taps, sizes_.element_bytes());
  if (transposed_) {
    copy_weights(call);
  }
  const std::int64_t items = sizes_.batch * sizes_.groups * rows_.count();
  const int all = parts(call.threads.count());
  call.threads.run(all, [&](int part) {
    const std::size_t share = columns_bytes_ + product_bytes_;
    std::byte* const room = call.scratch.data() + weight_bytes_ + static_cast<std::size_t>(part) * share;
    if (!touched_) {
      touch_pages(room, share);
    }
    for (std::int64_t item = items * part / all; item < items * (part + 1) / all; ++item) {
      multiply(call, columns, item, room);
    }
  });
  touched_ = true;
}

void ConvProducts::set_up() const { set_up_sgemm(product(rows_.width)); }

namespace {

template <bool transposed>
std::size_t products_scratch(const graph::OpShape& shape, int threads) {
  return ConvProducts(shape, transposed).scratch_bytes(threads);
}

template <bool transposed>
std::shared_ptr<void> prepare_products(const graph::OpShape& shape) {
  auto products = std::make_shared<ConvProducts>(shape, transposed);
  products->set_up();
  return products;
}

void run_products(const KernelCall& call) { static_cast<ConvProducts*>(call.prepared)->run(call); }

const RegisterKernel register_conv(
    "cpu", "conv", {.run = run_products, .scratch_bytes = products_scratch<false>, .prepare = prepare_products<false>});
const RegisterKernel register_conv_input("cpu", "conv_gradient_input",
                                         {.run = run_products,
                                          .scratch_bytes = products_scratch<true>,
                                          .prepare = prepare_products<true>});

}  // namespace
}  // namespace shardrun::device::cpu
