#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/device/cpu/columns.h"
#include "core/device/cpu/prepared_product.h"
#include "core/graph/op.h"

namespace shardrun::device::cpu {

/// Bytes of a block of im2col columns. Such a block fits a core's cache together with the other operands.
inline constexpr std::size_t columns_block_bytes = 512 << 10;

[[nodiscard]] inline std::size_t aligned(std::size_t bytes) noexcept { return (bytes + 63) / 64 * 64; }

/// The sizes of a convolution or of one of its gradients. The kernel slides over planes of `read` channels per group.
struct ConvSizes {
  /// `read`, `other`: the types of the two activation tensors.
  ConvSizes(const graph::Attributes& attributes, const graph::TensorType& read, const graph::TensorType& other,
            const std::vector<graph::Sliding>& slidings);

  std::int64_t batch;
  std::int64_t groups;
  std::int64_t read;         ///< channels per group of the tensor that is read through windows
  std::int64_t other;        ///< channels per group of the other activation: the result, or the gradient of the result
  std::int64_t taps = 1;     ///< elements of the kernel
  std::int64_t rows = 1;     ///< rows of kernel positions
  std::int64_t columns = 1;  ///< columns of kernel positions
  std::int64_t plane = 1;    ///< elements of a plane that is read
  bool direct = false;       ///< the planes themselves are the matrix of columns: kernel 1, stride 1, no padding
  graph::DType dtype;        ///< of the planes

  [[nodiscard]] std::int64_t positions() const noexcept { return rows * columns; }
  [[nodiscard]] std::size_t element_bytes() const noexcept { return graph::element_bytes(dtype); }
  /// Bytes of the im2col matrix for some channels and rows.
  [[nodiscard]] std::size_t matrix_bytes(std::int64_t channels, std::int64_t row_count) const noexcept;
};

/// A range of `size` items, cut into blocks of `width`. The last block can be smaller.
struct Blocked {
  std::int64_t size = 0;
  std::int64_t width = 1;

  [[nodiscard]] std::int64_t count() const noexcept { return width == 0 ? 0 : (size + width - 1) / width; }
  [[nodiscard]] RowRange at(std::int64_t number) const noexcept {
    const std::int64_t end = (number + 1) * width;
    return {number * width, end < size ? end : size};
  }
};

/// A convolution, or the gradient of its input, as matrix products. For each image, group and block of rows, multiplies
/// the weights [other, read * taps] by the im2col columns. The sizes alone decide the blocks.
class ConvProducts {
 public:
  /// With `transposed`, computes the gradient of the input, from a copy of the weights [groups, other, read, taps].
  ConvProducts(const graph::OpShape& shape, bool transposed);
  [[nodiscard]] std::size_t scratch_bytes(int threads) const;
  void set_up() const;  ///< calls set_up_sgemm()
  void run(const KernelCall& call);

 private:
  [[nodiscard]] Product product(std::int64_t rows) const;
  [[nodiscard]] int parts(int threads) const;
  void copy_weights(const KernelCall& call) const;
  void multiply(const KernelCall& call, const Columns& columns, std::int64_t item, std::byte* room) const;

  bool transposed_;
  std::vector<graph::Sliding> slidings_;
  ConvSizes sizes_;
  graph::DType weights_;
  graph::DType result_;
  Blocked rows_;
  PreparedProduct whole_;          ///< for a full block of rows
  PreparedProduct rest_;           ///< for the last block
  std::size_t weight_bytes_ = 0;   ///< bytes of the weights' copy
  std::size_t columns_bytes_ = 0;  ///< bytes per thread
  std::size_t product_bytes_ = 0;  ///< bytes per thread
  bool touched_ = false;           ///< whether touch_pages() has touched the scratch
};

/// The gradient of the weights as matrix products. For each group and block of channels, sums dy [other, positions]
/// times the transposed im2col columns over images and blocks of rows. If the result is not float32, the sum is made in
/// a float32 copy first.
class ConvWeightProducts {
 public:
  explicit ConvWeightProducts(const graph::OpShape& shape);
  [[nodiscard]] std::size_t scratch_bytes(int threads) const;
  void run(const KernelCall& call);

 private:
  [[nodiscard]] Product product(std::int64_t channels, std::int64_t rows) const;
  [[nodiscard]] const PreparedProduct& prepared(std::int64_t channels, std::int64_t rows) const;
  [[nodiscard]] int parts(int threads) const;
  void sum_block(const KernelCall& call, const Columns& columns, std::int64_t item, std::byte* room) const;

  std::vector<graph::Sliding> slidings_;
  ConvSizes sizes_;
  graph::DType gradient_;
  graph::DType result_;
  Blocked channels_;
  Blocked rows_;
  std::vector<PreparedProduct> products_;  ///< [full or last block of channels, full or last block of rows]
  std::size_t columns_bytes_ = 0;          ///< bytes per thread
  std::size_t sums_bytes_ = 0;             ///< bytes per thread
  std::size_t product_bytes_ = 0;          ///< bytes per thread
  bool touched_ = false;
};

}  // namespace shardrun::device::cpu
