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

/// A tensor of an einsum: of each of its letters, the size and the stride in elements.
struct Lettered {
  std::string letters;
  graph::DType dtype = graph::DType::f32;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;

  Lettered() = default;
  /// Without gaps, the last letter innermost.
  Lettered(std::string text, graph::DType type, std::vector<std::int64_t> shape);

  [[nodiscard]] std::int64_t size(char letter) const;    ///< 1 for a letter that it lacks
  [[nodiscard]] std::int64_t stride(char letter) const;  ///< 0 for a letter that it lacks
  [[nodiscard]] std::int64_t count(const std::string& some) const;
  [[nodiscard]] std::int64_t elements() const { return count(letters); }
  /// The operand as a matrix whose rows are the indices of `rows`. Nothing: its elements do not lie as a matrix.
  [[nodiscard]] std::optional<Operand> matrix(const std::string& rows, const std::string& columns) const;
};

/// How an einsum is computed: as a product of matrices for each index of a batch, if its letters allow that and the
/// matrices are worth it. Tensors that do not lie as matrices are first copied so that they do.
struct Contraction {
  /// `einsum`: what the op computes. `shape`: its operands and its result.
  Contraction(const graph::Einsum& einsum, const graph::OpShape& shape);

  [[nodiscard]] std::int64_t size(char letter) const;
  /// Where the matrix of index `number` of the batch begins in packed[tensor].
  [[nodiscard]] std::int64_t offset(std::size_t tensor, std::int64_t number) const;

  std::array<Lettered, 3> tensors;  ///< a, b and the result
  std::string summed;               ///< letters that the result lacks
  bool products = false;
  // Of products:
  std::string batch;     ///< letters of the result
  std::string rows;      ///< other letters of a and the result
  std::string columns;   ///< other letters of b and the result
  std::string inner;     ///< letters of a and b
  bool swapped = false;  ///< `a` is the op's second operand, and tensors[0] is too
  std::array<bool, 3> copied = {};
  std::array<Lettered, 3> packed;  ///< as they are multiplied
  Product product = {};            ///< of one index of the batch, without data
};

}  // namespace shardrun::device
