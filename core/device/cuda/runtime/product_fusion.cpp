#include "core/device/cuda/runtime/product_fusion.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>

#include "core/device/cuda/fusions.h"

namespace shardrun::device::cuda {
namespace {

using Gelu = Epilogue::Gelu;

/// The library may read an epilogue's vectors and matrices in packs. Their addresses are multiples of this.
constexpr std::uintptr_t aligned_bytes = 16;
/// Columns of GELU's operand are a multiple of this.
constexpr std::int64_t operand_columns = 8;

bool is_aligned(const TensorView& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.data) % aligned_bytes == 0; }

/// Whether the tensor is added to rows of `columns` elements as a vector: its dimensions are the result's last ones.
bool is_bias(const TensorView& tensor, const TensorView& result, std::int64_t columns) {
  const auto last = std::span(result.shape).first(result.rank).last(std::min(tensor.rank, result.rank));
  return tensor.dtype == result.dtype && tensor.elements() == columns &&
         std::ranges::equal(std::span(tensor.shape).first(tensor.rank), last);
}

/// Whether the product can write there: it reads nothing of that memory, and works with nothing of it. Memory that the
/// product no longer needs when it is done may be planned for the next op's result.
bool is_free(const TensorView& memory, const PreparedKernel& product) {
  return !overlap(product.scratch.data(), product.scratch.size(), memory) &&
         std::ranges::none_of(product.inputs,
                              [&](const TensorView& input) { return overlap(input.data, input.bytes(), memory); });
}

bool has_gelu_of_library(const PreparedKernel& op, const TensorView& result) {
  return op.attributes->text("form") == "tanh" && result.dtype == graph::DType::bf16;
}

std::optional<Epilogue> with_sum(Epilogue epilogue, const TensorView& other, const TensorView& result,
                                 std::int64_t columns) {
  if (!is_aligned(other) || overlap(other.data, other.bytes(), result)) {
    return std::nullopt;
  }
  if (epilogue.bias == nullptr && is_bias(other, result, columns)) {
    epilogue.bias = other.data;
    return epilogue;
  }
  if (epilogue.added == nullptr && have_same_shape(other, result)) {
    epilogue.added = other.data;
    return epilogue;
  }
  return std::nullopt;
}

std::optional<Epilogue> with_gelu(Epilogue epilogue, Gelu gelu, const TensorView* operand, std::int64_t columns) {
  epilogue.gelu = gelu;
  if (operand != nullptr) {
    if (!is_aligned(*operand) || columns % operand_columns != 0) {
      return std::nullopt;
    }
    epilogue.operand = operand->data;
  }
  return epilogue;
}

}  // namespace

std::optional<Fusion> fusion_of(const ProductStep& step, const Epilogue& epilogue, const PreparedKernel& product,
                                const PreparedKernel& next) {
  const TensorView& sums = product.outputs.front();
  const bool is_packed = step.batch == 1 && !step.product.c.transposed && step.product.c.stride == step.product.n;
  if (!is_packed || epilogue.gelu != Gelu::none || next.outputs.size() != 1 ||
      !have_same_shape(sums, next.outputs.front())) {
    return std::nullopt;
  }
  const TensorView& result = next.outputs.front();
  const bool in_place = is_same(sums, result);
  const std::int64_t columns = step.product.n;
  const std::string_view op = next.kernel->op;
  Fusion made{.epilogue = {}, .inputs = product.inputs, .outputs = {result}};
  std::optional<Epilogue> found;
  if (op == "add" && in_place) {
    const bool is_second = !is_same(sums, next.inputs[0]);
    const TensorView& other = next.inputs[is_second ? 0 : 1];
    if (!is_second || is_same(sums, next.inputs[1])) {
      found = with_sum(epilogue, other, result, columns);
    }
    made.inputs.push_back(other);
  } else if (op == "gelu" && is_same(sums, next.inputs[0]) && has_gelu_of_library(next, result) &&
             (in_place || is_free(result, product))) {
    found = with_gelu(epilogue, Gelu::forward, in_place ? nullptr : &sums, columns);
    if (!in_place) {
      made.outputs.push_back(sums);
    }
  } else if (op == "gelu_gradient" && in_place && epilogue.is_empty() && is_same(sums, next.inputs[0]) &&
             have_same_shape(next.inputs[1], result) && !overlap(next.inputs[1].data, next.inputs[1].bytes(), result) &&
             has_gelu_of_library(next, result)) {
    found = with_gelu(epilogue, Gelu::backward, &next.inputs[1], columns);
    made.inputs.push_back(next.inputs[1]);
  }
  if (!found) {
    return std::nullopt;
  }
  made.epilogue = *found;
  return made;
}

}  // namespace shardrun::device::cuda
