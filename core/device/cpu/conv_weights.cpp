#include <algorithm>
#include <memory>

#include "core/device/cpu/blocks.h"
#include "core/device/cpu/conv.h"

namespace shardrun::device::cpu {
namespace {

/// The most columns of the gradient in a block of several channels. It is a multiple of every micro-kernel's width.
constexpr std::int64_t weight_columns = 48;

/// The size of the last block of `blocked`, which can be smaller than the others.
std::int64_t last_of(const Blocked& blocked) {
  const RowRange last = blocked.at(std::max<std::int64_t>(1, blocked.count()) - 1);
  return last.end - last.begin;
}

}  // namespace

ConvWeightProducts::ConvWeightProducts(const graph::OpShape& shape)
    : slidings_(sliding_of(shape.attributes, shape.attributes.integers("sizes"))),
      sizes_(shape.attributes, shape.inputs[1], shape.inputs[0], slidings_),
      gradient_(shape.inputs[0].dtype),
      result_(shape.outputs[0].dtype),
      channels_{sizes_.read, std::max<std::int64_t>(1, std::min(sizes_.read, weight_columns / sizes_.taps))} {
  const std::size_t row = std::max<std::size_t>(1, sizes_.matrix_bytes(channels_.width, 1));
  const auto rows = static_cast<std::int64_t>(sizes_.direct ? SIZE_MAX / 2 : columns_block_bytes / row);
  rows_ = {sizes_.rows, std::clamp<std::int64_t>(rows, 1, std::max<std::int64_t>(1, sizes_.rows))};
  for (const std::int64_t channels : {channels_.width, last_of(channels_)}) {
    for (const std::int64_t height : {rows_.width, last_of(rows_)}) {
      products_.emplace_back(product(channels, height));
      product_bytes_ = std::max(product_bytes_, aligned(products_.back().scratch_bytes(1)));
    }
  }
  columns_bytes_ = sizes_.matrix_bytes(channels_.width, rows_.width);
  sums_bytes_ = result_ == graph::DType::f32
                    ? 0
                    : aligned(static_cast<std::size_t>(sizes_.other * channels_.width * sizes_.taps) * sizeof(float));
}

/// The product for a block of channels and of rows of positions. Its operands do not have addresses yet.
Product ConvWeightProducts::product(std::int64_t channels, std::int64_t rows) const {
  const std::int64_t n = channels * sizes_.taps;
  const std::int64_t k = rows * sizes_.columns;
  const bool summed_apart = result_ != graph::DType::f32;
  return {sizes_.other,
          n,
          k,
          {nullptr, gradient_, sizes_.positions()},
          {nullptr, sizes_.dtype, sizes_.direct ? sizes_.plane : k, true},
          {nullptr, graph::DType::f32, summed_apart ? n : sizes_.read * sizes_.taps}};
}

const PreparedProduct& ConvWeightProducts::prepared(std::int64_t channels, std::int64_t rows) const {
  return products_[(channels == channels_.width ? 0U : 2U) + (rows == rows_.width ? 0U : 1U)];
}

int ConvWeightProducts::parts(int threads) const {
  return static_cast<int>(std::min<std::int64_t>(threads, sizes_.groups * channels_.count()));
}

std::size_t ConvWeightProducts::scratch_bytes(int threads) const {
  return static_cast<std::size_t>(parts(threads)) * (columns_bytes_ + sums_bytes_ + product_bytes_);
}

/// Computes the gradient of one block of channels of one group.
void ConvWeightProducts::sum_block(const KernelCall& call, const Columns& columns, std::int64_t item,
                                   std::byte* room) const {
  const std::int64_t group = item / channels_.count();
  const RowRange channels = channels_.at(item % channels_.count());
  const std::int64_t count = channels.end - channels.begin;
  const std::int64_t width = sizes_.read * sizes_.taps;
  const Operand result = Operand{static_cast<std::byte*>(call.outputs[0].data), result_, width}.from(
      group * sizes_.other, channels.begin * sizes_.taps);
  Operand sums = result;
  if (sums_bytes_ > 0) {
    sums = {room + columns_bytes_, graph::DType::f32, count * sizes_.taps};
  }
  bool adds = call.accumulate && sums_bytes_ == 0;
  for (std::int64_t step = 0; step < sizes_.batch * rows_.count(); ++step) {
    const std::int64_t image = step / rows_.count() * sizes_.groups + group;
    const RowRange rows = rows_.at(step % rows_.count());
    Product p = product(count, rows.end - rows.begin);
    p.a.data = static_cast<std::byte*>(call.inputs[0].data);
    p.a = p.a.from(image * sizes_.other, rows.begin * sizes_.columns);
    std::byte* const planes =
        static_cast<std::byte*>(call.inputs[1].data) +
        static_cast<std::size_t>((image * sizes_.read + channels.begin) * sizes_.plane) * sizes_.element_bytes();
    p.b.data = sizes_.direct ? planes : room;
    if (sizes_.direct) {
      p.b = p.b.from(rows.begin * sizes_.columns, 0);
    } else {
      columns.write(planes, count, rows, room);
    }
    p.c.data = sums.data;
    prepared(count, rows.end - rows.begin).run_alone(p, adds, room + columns_bytes_ + sums_bytes_);
    adds = true;
  }
  if (sums_bytes_ > 0) {
    block_loops().narrow(sums.floats(), sums.stride, result.data, width, sizes_.other, count * sizes_.taps,
                         call.accumulate);
  }
}

void ConvWeightProducts::run(const KernelCall& call) {
  const Columns columns(taps_of(slidings_, call.inputs[1], call.inputs[0]), sizes_.element_bytes());
  if (sizes_.batch * rows_.size * sizes_.columns == 0) {
    if (!call.accumulate) {
      std::fill_n(static_cast<std::byte*>(call.outputs[0].data), call.outputs[0].bytes(), std::byte{0});
    }
    return;
  }
  const std::int64_t items = sizes_.groups * channels_.count();
  const int all = parts(call.threads.count());
  call.threads.run(all, [&](int part) {
    const std::size_t share = columns_bytes_ + sums_bytes_ + product_bytes_;
    std::byte* const room = call.scratch.data() + static_cast<std::size_t>(part) * share;
    if (!touched_) {
      touch_pages(room, share);
    }
    for (std::int64_t item = items * part / all; item < items * (part + 1) / all; ++item) {
      sum_block(call, columns, item, room);
    }
  });
  touched_ = true;
}

namespace {

std::size_t weights_scratch(const graph::OpShape& shape, int threads) {
  return ConvWeightProducts(shape).scratch_bytes(threads);
}

std::shared_ptr<void> prepare_weights(const graph::OpShape& shape) {
  return std::make_shared<ConvWeightProducts>(shape);
}

void run_weights(const KernelCall& call) { static_cast<ConvWeightProducts*>(call.prepared)->run(call); }

const RegisterKernel register_conv_weights(
    "cpu", "conv_gradient_weights", {.run = run_weights, .scratch_bytes = weights_scratch, .prepare = prepare_weights});

}  // namespace
}  // namespace shardrun::device::cpu
