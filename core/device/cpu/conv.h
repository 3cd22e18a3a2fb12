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

/// Bytes of a matrix of columns that a core's cache holds beside the other operands.
inline constexpr std::size_t columns_block_bytes = 512 << 10;

[[nodiscard]] inline std::size_t aligned(std::size_t bytes) noexcept { return (bytes + 63) / 64 * 64; }

/// The sizes of a convolution or one of its gradients. The kernel is laid on planes of `read` channels a group.
struct ConvSizes {
  /// `read`, `other`: the types of the two activations.
  ConvSizes(const graph::Attributes& attributes, const graph::TensorType& read, const graph::TensorType& other,
            const std::vector<graph::Sliding>& slidings);

  std::int64_t batch;
  std::int64_t groups;
  std::int64_t read;         ///< channels a group of the tensor that is read through windows
  std::int64_t other;        ///< channels a group of the other activation: the result, or the gradient of one
  std::int64_t taps = 1;     ///< elements of the kernel
  std::int64_t rows = 1;     ///< of the positions
  std::int64_t columns = 1;  ///< of the positions
  std::int64_t plane = 1;    ///< elements of a plane that is read
  bool direct = false;       ///< the matrix of columns is the planes themselves: kernel 1, stride 1, no padding
  graph::DType dtype;        ///< of the planes

  [[nodiscard]] std::int64_t positions() const noexcept { return rows * columns; }
  [[nodiscard]] std::size_t element_bytes() const noexcept { return graph::element_bytes(dtype); }
  /// Bytes of the matrix of columns of some channels and rows.
  [[nodiscard]] std::size_t matrix_bytes(std::int64_t channels, std::int64_t row_count) const noexcept;
};

/// A range of `size` things cut into blocks of `width`; the last may be smaller.
struct Blocked {
  std::int64_t size = 0;
  std::int64_t width = 1;

  [[nodiscard]] std::int64_t count() const noexcept { return width == 0 ? 0 : (size + width - 1) / width; }
  [[nodiscard]] RowRange at(std::int64_t number) const noexcept {
    const std::int64_t end = (number + 1) * width;
    return {number * width, end < size ? end : size};
  }
};

/// A convolution, or the gradient of its input, as products: of each image, group and block of rows, the weights
/// [other, read * taps] with the columns that the kernel meets. The blocks depend on sizes alone.
class ConvProducts {
 public:
  /// `transposed`: for the gradient of the input. Its weights are first copied so that the group's `other` leads.
  ConvProducts(const graph::OpShape& shape, bool transposed);
  [[nodiscard]] std::size_t scratch_bytes(int threads) const;
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
  PreparedProduct whole_;          ///< of a block of rows
  PreparedProduct rest_;           ///< of the last block
  std::size_t weight_bytes_ = 0;   ///< of the copy
  std::size_t columns_bytes_ = 0;  ///< of one thread
  std::size_t product_bytes_ = 0;  ///< of one thread
  bool touched_ = false;
};

/// The gradient of the weights as products: of each group and block of channels, the sum over images and blocks of rows
/// of dy [other, positions] with the transposed columns. A result that is not float32 is summed in float32 first.
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
  std::vector<PreparedProduct> products_;  ///< of whole and last blocks of channels, each with whole and last rows
  std::size_t columns_bytes_ = 0;          ///< of one thread
  std::size_t sums_bytes_ = 0;             ///< of one thread
  std::size_t product_bytes_ = 0;          ///< of one thread
  bool touched_ = false;
};

}  // namespace shardrun::device::cpu
