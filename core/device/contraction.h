#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/device/matrices.h"
#include "core/graph/einsum.h"
#include "core/graph/op.h"

namespace shardrun::device {

/// A tensor of an einsum: the size and the stride (in elements) of the dimension that each letter names.
struct Lettered {
  std::string letters;
  graph::DType dtype = graph::DType::f32;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;

  Lettered() = default;
  /// Makes strides without gaps. The last letter is innermost.
  Lettered(std::string text, graph::DType type, std::vector<std::int64_t> shape);

  [[nodiscard]] std::int64_t size(char letter) const;    ///< 1 for a letter that the tensor lacks
  [[nodiscard]] std::int64_t stride(char letter) const;  ///< 0 for a letter that the tensor lacks
  [[nodiscard]] std::int64_t count(const std::string& some) const;
  [[nodiscard]] std::int64_t elements() const { return count(letters); }
  /// The tensor as a matrix whose row index is made of the letters `rows`, and whose column index of the letters
  /// `columns`. Returns nothing if the elements are not laid out as such a matrix.
  [[nodiscard]] std::optional<Operand> matrix(const std::string& rows, const std::string& columns) const;
};

/// How an einsum is computed. It is one matrix product for each index of a batch if the letters allow that and the
/// matrices are large enough, else plain loops. Tensors that are not laid out as matrices are copied into that layout.
struct Contraction {
  /// `einsum`: what the op computes. `shape`: the types of its operands and its result.
  Contraction(const graph::Einsum& einsum, const graph::OpShape& shape);

  [[nodiscard]] std::int64_t size(char letter) const;
  /// The element of packed[tensor] at which the matrix for batch index `number` begins.
  [[nodiscard]] std::int64_t offset(std::size_t tensor, std::int64_t number) const;

  std::array<Lettered, 3> tensors;  ///< a, b and the result
  std::string summed;               ///< letters of the operands that the result lacks
  bool products = false;            ///< whether the einsum is computed as matrix products
  // The letters of each role in the products:
  std::string batch;     ///< letters of the result that number the products
  std::string rows;      ///< other letters of a and the result
  std::string columns;   ///< other letters of b and the result
  std::string inner;     ///< letters of a and b
  bool swapped = false;  ///< `a` is the op's second operand, and tensors[0] is too
  std::array<bool, 3> copied = {};
  std::array<Lettered, 3> packed;  ///< the tensors as they are laid out for the products
  Product product = {};            ///< the product for one batch index, without data
};

}  // namespace shardrun::device
