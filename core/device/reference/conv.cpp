#include "core/device/reference/views.h"
#include "core/device/taps.h"

namespace shardrun::device::reference {
namespace {

/// A tensor [batch, channels, H, W]; without H, each image is one row.
struct Images {
  explicit Images(const TensorView& view)
      : data(reals(view)),
        channels(view.shape[1]),
        rows(view.rank == 4 ? view.shape[2] : 1),
        columns(view.shape[view.rank - 1]) {}

  [[nodiscard]] std::int64_t plane(std::int64_t n, std::int64_t c) const { return (n * channels + c) * rows * columns; }
  /// Returns an element; 0 if `row` or `column` is negative, because its tap is outside.
  [[nodiscard]] double at(std::int64_t n, std::int64_t c, std::int64_t row, std::int64_t column) const {
    return row < 0 || column < 0 ? 0.0 : data[plane(n, c) + row * columns + column];
  }

  double* data;
  std::int64_t channels;
  std::int64_t rows;
  std::int64_t columns;
};

std::vector<std::int64_t> kernel_sizes(const TensorView& w) { return {w.shape.begin() + 2, w.shape.begin() + w.rank}; }

/// y[n, o, i] = sum over c and k of x[n, group's c, i * stride + k * dilation - low] * w[o, c, k]. x is 0 outside.
void conv(const KernelCall& call) {
  const TensorView& w = call.inputs[1];
  const auto [down, across] = taps_of(sliding_of(call.attributes, kernel_sizes(w)), call.inputs[0], call.outputs[0]);
  const Images x(call.inputs[0]);
  const Images kernel(w);
  const Images y(call.outputs[0]);
  const std::int64_t outputs = y.channels / call.attributes.integer("groups");
  const std::int64_t work = kernel.channels * down.size * across.size;
  for_each(call, call.outputs[0].elements(), work, [&, down = down, across = across](std::int64_t element) {
    const std::int64_t column = element % y.columns;
    const std::int64_t row = element / y.columns % y.rows;
    const std::int64_t o = element / (y.columns * y.rows) % y.channels;
    const std::int64_t n = element / (y.columns * y.rows * y.channels);
    double sum = 0;
    for (std::int64_t c = 0; c < kernel.channels; ++c) {
      for (std::int64_t k = 0; k < down.size; ++k) {
        for (std::int64_t l = 0; l < across.size; ++l) {
          const std::int64_t channel = o / outputs * kernel.channels + c;
          sum += x.at(n, channel, down.at(row, k), across.at(column, l)) * kernel.at(o, c, k, l);
        }
      }
    }
    y.data[element] = sum;
  });
}

/// dx[n, c, j] = sum over the group's o and over k of dy[n, o, i] * w[o, c, k], for the i with
/// i * stride + k * dilation - low = j. The term is 0 if there is no such i.
void conv_gradient_input(const KernelCall& call) {
  const TensorView& w = call.inputs[1];
  const auto [down, across] =
      transposed_taps(sliding_of(call.attributes, kernel_sizes(w)), call.inputs[0], call.outputs[0]);
  const Images dy(call.inputs[0]);
  const Images kernel(w);
  const Images dx(call.outputs[0]);
  const std::int64_t outputs = dy.channels / call.attributes.integer("groups");
  const std::int64_t work = outputs * down.size * across.size;
  for_each(call, call.outputs[0].elements(), work, [&, down = down, across = across](std::int64_t element) {
    const std::int64_t column = element % dx.columns;
    const std::int64_t row = element / dx.columns % dx.rows;
    const std::int64_t c = element / (dx.columns * dx.rows) % dx.channels;
    const std::int64_t n = element / (dx.columns * dx.rows * dx.channels);
    double sum = 0;
    for (std::int64_t number = 0; number < outputs; ++number) {
      const std::int64_t o = c / kernel.channels * outputs + number;
      for (std::int64_t k = 0; k < down.size; ++k) {
        for (std::int64_t l = 0; l < across.size; ++l) {
          sum += dy.at(n, o, down.at(row, k), across.at(column, l)) * kernel.at(o, c % kernel.channels, k, l);
        }
      }
    }
    dx.data[element] = sum;
  });
}

/// dw[o, c, k] = sum over n and i of dy[n, o, i] * x[n, group's c, i * stride + k * dilation - low]. x is 0 outside.
void conv_gradient_weights(const KernelCall& call) {
  const std::vector<std::int64_t>& sizes = call.attributes.integers("sizes");
  const auto [down, across] = taps_of(sliding_of(call.attributes, sizes), call.inputs[1], call.inputs[0]);
  const Images dy(call.inputs[0]);
  const Images x(call.inputs[1]);
  const Images dw(call.outputs[0]);
  const std::int64_t outputs = dy.channels / call.attributes.integer("groups");
  const std::int64_t batch = call.inputs[0].shape[0];
  for_each(call, call.outputs[0].elements(), batch * dy.rows * dy.columns,
           [&, down = down, across = across](std::int64_t element) {
             const std::int64_t l = element % dw.columns;
             const std::int64_t k = element / dw.columns % dw.rows;
             const std::int64_t c = element / (dw.columns * dw.rows) % dw.channels;
             const std::int64_t o = element / (dw.columns * dw.rows * dw.channels);
             double sum = 0;
             for (std::int64_t n = 0; n < batch; ++n) {
               for (std::int64_t row = 0; row < dy.rows; ++row) {
                 for (std::int64_t column = 0; column < dy.columns; ++column) {
                   const std::int64_t channel = o / outputs * dw.channels + c;
                   sum += dy.at(n, o, row, column) * x.at(n, channel, down.at(row, k), across.at(column, l));
                 }
               }
             }
             put(call, element, sum);
           });
}

const RegisterKernel register_conv("reference", "conv", {.run = conv});
const RegisterKernel register_conv_input("reference", "conv_gradient_input", {.run = conv_gradient_input});
const RegisterKernel register_conv_weights("reference", "conv_gradient_weights", {.run = conv_gradient_weights});

}  // namespace
}  // namespace shardrun::device::reference
