#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "core/device/matrices.h"
#include "core/graph/op.h"

/// A library of matrix products computes an op as a list of copies and products. Shapes and types alone decide the
/// list, so memory can be planned without the library and without a GPU.
namespace shardrun::device::cuda {

/// A byte offset in a tensor of the op, or in its scratch.
struct Place {
  static constexpr std::size_t result = 2;  ///< 0 and 1 are the operands
  static constexpr std::size_t scratch = 3;
  std::size_t tensor = 0;
  std::int64_t byte = 0;
};

/// Copies a strided box.
struct CopyStep {
  Place from;
  Place to;
  std::size_t element_bytes = 0;
  std::vector<std::int64_t> shape = {};
  std::vector<std::int64_t> from_strides = {};  ///< in elements
  std::vector<std::int64_t> to_strides = {};
  bool only_adding = false;  ///< copies only if the op adds to its result
};

/// c = a b, or c += a b if the op adds to its result, for each index of a batch.
struct ProductStep {
  Product product = {};  ///< without data
  std::array<Place, 3> places = {};
  std::int64_t batch = 1;
  std::array<std::int64_t, 3> batch_strides = {};  ///< in elements
};

struct ProductSteps {
  std::vector<std::variant<CopyStep, ProductStep>> steps;
  Place workspace = {.tensor = Place::scratch};  ///< one workspace for all products, which run one after the other
  std::size_t workspace_bytes = 0;
  /// Includes room to align the scratch's begin. Places in the scratch count from its first multiple of `alignment`.
  std::size_t scratch_bytes = 0;

  static constexpr std::size_t alignment = 256;
};

/// Decides when bfloat16 operands and results whose rows are not aligned to 16 bytes (logits of 50257 words) are copied
/// to aligned rows, and back. Tensor cores are fast only with aligned rows.
struct Padding {
  std::int64_t least_terms = std::int64_t{1} << 27;   ///< multiplications; smaller products are not worth it
  std::int64_t least_terms_a_copy = 256;              ///< multiplications per copied element
  std::int64_t most_bytes = std::int64_t{128} << 20;  ///< bytes of copies at a time; larger products are made in parts
};

/// Whether the op is `matmul`, `matmul_gradient_weights` or `einsum`.
[[nodiscard]] bool is_product(std::string_view op);

/// Returns nothing if a library cannot compute the op: types do not fit, a tensor is empty, or an einsum is no product
/// of matrices or needs more than 64 launches. REQUIRES: is_product(op).
[[nodiscard]] std::optional<ProductSteps> product_steps(std::string_view op, const graph::OpShape& shape,
                                                        const Padding& padding = {});

}  // namespace shardrun::device::cuda
