#include "core/device/cuda/product.h"
#include "core/device/taps.h"

// Convolutions are matrix products, one for each group of channels. The matrix of the windows (im2col) is never stored.
// x, dx: [batch, channels, H, W]   w, dw: [outputs, channels of a group, taps down, taps across]
// y, dy: [batch, outputs, rows, columns]

namespace shardrun::device::cuda {
namespace {

/// Taps (core/device/taps.h) along both dimensions.
struct Window {
  explicit Window(const std::array<Taps, 2>& taps) : down(taps[0]), across(taps[1]) {}

  Taps down;
  Taps across;
};

/// Images [batch, channels, rows, columns]; tensors of three dimensions have one row.
struct Images {
  explicit Images(const TensorView& view)
      : data(reals(view)),
        channels(view.shape[1]),
        rows(view.rank == 4 ? view.shape[2] : 1),
        columns(view.shape[view.rank - 1]) {}

  [[nodiscard]] SHARDRUN_ON_DEVICE std::int64_t plane() const { return rows * columns; }

  Reals data;
  std::int64_t channels;
  std::int64_t rows;
  std::int64_t columns;
};

/// The place of a pixel in a batch of images.
struct Pixel {
  std::int64_t image;
  std::int64_t row;
  std::int64_t column;

  [[nodiscard]] SHARDRUN_ON_DEVICE static Pixel of(std::int64_t number, std::int64_t rows, std::int64_t columns) {
    return {number / (rows * columns), number / columns % rows, number % columns};
  }
};

/// The matrix that the windows read: rows are pixels of the result, columns are pairs (channel of a group, tap).
struct Windows {
  using Row = Pixel;
  struct Inner {
    std::int64_t channel;
    std::int64_t tap_down;
    std::int64_t tap_across;
  };
  Images x;
  Window window;
  std::int64_t group_channels;
  static constexpr bool inner_is_fast = false;  // consecutive pixels read consecutive elements

  SHARDRUN_ON_DEVICE Row row(std::int64_t, std::int64_t pixel) const {
    return Pixel::of(pixel, window.down.count, window.across.count);
  }
  SHARDRUN_ON_DEVICE Inner inner(std::int64_t group, std::int64_t k) const {
    const Pixel tap = Pixel::of(k, window.down.size, window.across.size);
    return {group * group_channels + tap.image, tap.row, tap.column};
  }
  SHARDRUN_ON_DEVICE float get(const Row& pixel, const Inner& k) const {
    const std::int64_t row = window.down.at(pixel.row, k.tap_down);
    const std::int64_t column = window.across.at(pixel.column, k.tap_across);
    if (row < 0 || column < 0) {
      return 0.0F;
    }
    return x.data.get((pixel.image * x.channels + k.channel) * x.plane() + row * x.columns + column);
  }
};

/// Windows transposed: a column for each pair (channel of a group, tap).
struct TransposedWindows {
  using Row = Windows::Inner;
  using Inner = Windows::Row;
  Windows windows;
  static constexpr bool inner_is_fast = true;

  SHARDRUN_ON_DEVICE Row row(std::int64_t group, std::int64_t k) const { return windows.inner(group, k); }
  SHARDRUN_ON_DEVICE Inner inner(std::int64_t group, std::int64_t pixel) const { return windows.row(group, pixel); }
  SHARDRUN_ON_DEVICE float get(const Row& k, const Inner& pixel) const { return windows.get(pixel, k); }
};

/// w as it is stored: rows are outputs of a group, columns are pairs (channel of the group, tap).
struct Weights {
  using Row = std::int64_t;
  using Inner = std::int64_t;
  Reals w;
  std::int64_t outputs;  ///< outputs per group
  std::int64_t inner_size;
  static constexpr bool inner_is_fast = true;

  SHARDRUN_ON_DEVICE Row row(std::int64_t group, std::int64_t output) const {
    return (group * outputs + output) * inner_size;
  }
  SHARDRUN_ON_DEVICE Inner inner(std::int64_t, std::int64_t k) const { return k; }
  SHARDRUN_ON_DEVICE float get(Row row, Inner inner) const { return w.get(row + inner); }
};

/// w for the gradient of x: rows are channels of a group, columns are pairs (output of the group, tap).
struct WeightsOfInputs {
  using Row = std::int64_t;
  using Inner = std::int64_t;
  Reals w;
  std::int64_t outputs;   ///< outputs per group
  std::int64_t channels;  ///< channels per group
  std::int64_t taps;
  static constexpr bool inner_is_fast = true;

  SHARDRUN_ON_DEVICE Row row(std::int64_t, std::int64_t channel) const { return channel * taps; }
  SHARDRUN_ON_DEVICE Inner inner(std::int64_t group, std::int64_t k) const {
    return (group * outputs + k / taps) * channels * taps + k % taps;
  }
  SHARDRUN_ON_DEVICE float get(Row row, Inner inner) const { return w.get(row + inner); }
};

/// A gradient as it is stored: rows are channels of a group, columns are pixels.
struct Pixels {
  using Row = std::int64_t;
  using Inner = std::int64_t;
  Images y;
  std::int64_t group_channels;
  static constexpr bool inner_is_fast = true;

  SHARDRUN_ON_DEVICE Row row(std::int64_t group, std::int64_t channel) const {
    return (group * group_channels + channel) * y.plane();
  }
  SHARDRUN_ON_DEVICE Inner inner(std::int64_t, std::int64_t pixel) const {
    return pixel / y.plane() * y.channels * y.plane() + pixel % y.plane();
  }
  SHARDRUN_ON_DEVICE float get(Row row, Inner inner) const { return y.data.get(row + inner); }
};

/// Stores a result whose rows are pixels and whose columns are channels of a group.
struct PutPixels {
  Images y;
  std::int64_t group_channels;
  SHARDRUN_ON_DEVICE void put(std::int64_t group, std::int64_t pixel, std::int64_t channel, float value) const {
    const std::int64_t image = pixel / y.plane();
    y.data.set((image * y.channels + group * group_channels + channel) * y.plane() + pixel % y.plane(), value);
  }
};

struct PutWeights {
  Reals w;
  std::int64_t outputs;
  std::int64_t columns;
  bool accumulate;
  SHARDRUN_ON_DEVICE void put(std::int64_t group, std::int64_t output, std::int64_t column, float value) const {
    w.put((group * outputs + output) * columns + column, value, accumulate);
  }
};

std::vector<std::int64_t> kernel_sizes(const TensorView& w) { return {w.shape.begin() + 2, w.shape.begin() + w.rank}; }

/// y[n, o, i] = sum over c and k of x[n, group's c, i * stride + k * dilation - low] * w[o, c, k]; outside of x is 0.
void conv(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const TensorView& w = call.inputs[1];
  const TensorView& y = call.outputs[0];
  const std::int64_t groups = call.attributes.integer("groups");
  const Window window(taps_of(graph::sliding_of(call.attributes, kernel_sizes(w)), x, y));
  const Images images(y);
  const std::int64_t outputs = y.shape[1] / groups;
  const std::int64_t inner = w.shape[1] * window.down.size * window.across.size;
  multiply(call, groups, y.shape[0] * images.rows * images.columns, outputs, inner,
           Windows{Images(x), window, w.shape[1]}, Weights{reals(w), outputs, inner}, PutPixels{images, outputs});
}

/// dx[n, c, j] = sum over the group's o and over k of dy[n, o, i] * w[o, c, k], with i * stride + k * dilation - low =
/// j; dy is 0 if there is no such i.
void conv_gradient_input(const KernelCall& call) {
  const TensorView& dy = call.inputs[0];
  const TensorView& w = call.inputs[1];
  const TensorView& dx = call.outputs[0];
  const std::int64_t groups = call.attributes.integer("groups");
  const Window window(transposed_taps(graph::sliding_of(call.attributes, kernel_sizes(w)), dy, dx));
  const Images images(dx);
  const std::int64_t outputs = dy.shape[1] / groups;
  const std::int64_t channels = w.shape[1];
  const std::int64_t taps = window.down.size * window.across.size;
  multiply(call, groups, dx.shape[0] * images.rows * images.columns, channels, outputs * taps,
           Windows{Images(dy), window, outputs}, WeightsOfInputs{reals(w), outputs, channels, taps},
           PutPixels{images, channels});
}

/// dw[o, c, k] = sum over n and i of dy[n, o, i] * x[n, group's c, i * stride + k * dilation - low]; outside of x is 0.
void conv_gradient_weights(const KernelCall& call) {
  const TensorView& dy = call.inputs[0];
  const TensorView& x = call.inputs[1];
  const TensorView& dw = call.outputs[0];
  const std::int64_t groups = call.attributes.integer("groups");
  const Window window(taps_of(graph::sliding_of(call.attributes, call.attributes.integers("sizes")), x, dy));
  const Images images(dy);
  const std::int64_t outputs = dy.shape[1] / groups;
  const std::int64_t columns = dw.shape[1] * window.down.size * window.across.size;
  multiply(call, groups, outputs, columns, dy.shape[0] * images.rows * images.columns, Pixels{images, outputs},
           TransposedWindows{Windows{Images(x), window, dw.shape[1]}},
           PutWeights{reals(dw), outputs, columns, call.accumulate});
}

const AddKernels convolutions({{"conv", {.run = conv}},
                               {"conv_gradient_input", {.run = conv_gradient_input}},
                               {"conv_gradient_weights", {.run = conv_gradient_weights}}});

}  // namespace
}  // namespace shardrun::device::cuda
