#include "core/device/cuda/runtime/library_ops.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "core/device/cuda/copies.h"
#include "core/device/cuda/fusions.h"
#include "core/device/cuda/runtime/product_steps.h"
#include "core/device/device.h"

namespace shardrun::device::cuda {
namespace {

// The next functions decide which ops an epilogue of cuBLASLt can compute together with the product before them.

/// A product with another op as its epilogue.
struct Fusion {
  Epilogue epilogue;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;  ///< the op's result, then the product's result if it is kept
};

using Gelu = Epilogue::Gelu;

/// The alignment of an epilogue's vectors and matrices, in bytes, because the library may read them in packs.
constexpr std::uintptr_t aligned_bytes = 16;
/// The number of columns of GELU's operand must be a multiple of this.
constexpr std::int64_t operand_columns = 8;

bool is_aligned(const TensorView& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.data) % aligned_bytes == 0; }

/// Whether the tensor is added as a vector to rows of `columns` elements: its dimensions are the result's last ones.
bool is_bias(const TensorView& tensor, const TensorView& result, std::int64_t columns) {
  const auto last = std::span(result.shape).first(result.rank).last(std::min(tensor.rank, result.rank));
  return tensor.dtype == result.dtype && tensor.elements() == columns &&
         std::ranges::equal(std::span(tensor.shape).first(tensor.rank), last);
}

/// Whether the product can write to this memory while it runs, because neither its operands nor its scratch lie there.
/// The plan may give the next op's result memory that is free only after the product.
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

/// The product with `next` in its epilogue, or nothing if an epilogue cannot compute `next`. `step` is the only step of
/// `product`, and `epilogue` its epilogue so far. Everything that both ops would write must be written, because later
/// ops may read it. An epilogue can compute:
///  - `add` in place of the product's result. The other operand is a vector for each row, or a tensor like the result.
///  - `gelu`, form tanh, with bfloat16 results. If it is not in place, the product's result is kept as GELU's operand.
///  - `gelu_gradient`, form tanh, with bfloat16 results, in place.
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

/// A step, bound to its memory.
struct BoundProduct {
  ProductStep step;
  std::shared_ptr<const LibraryProduct> product;
  ProductMemory memory;
};
struct BoundCopy {
  CopyStep step;
  const void* from = nullptr;
  void* to = nullptr;
};

/// The bound steps of an op.
struct BoundSteps {
  std::vector<std::variant<BoundCopy, BoundProduct>> steps;

  void operator()(const KernelCall& call) const;
};

void BoundSteps::operator()(const KernelCall& call) const {
  for (const auto& each : steps) {
    if (const auto* const copy = std::get_if<BoundCopy>(&each)) {
      if (!copy->step.only_adding || call.accumulate) {
        copy_box(call, {.from = copy->from,
                        .to = copy->to,
                        .element_bytes = copy->step.element_bytes,
                        .shape = copy->step.shape,
                        .from_strides = copy->step.from_strides,
                        .to_strides = copy->step.to_strides});
      }
    } else {
      const auto& product = std::get<BoundProduct>(each);
      product.product->run(product.memory, call.accumulate, static_cast<cudaStream_t>(call.stream));
    }
  }
}

/// The addresses of the op's tensors and scratch.
using Memories = std::array<std::byte*, 4>;

std::byte* at(const Memories& memories, const Place& place) { return memories[place.tensor] + place.byte; }

/// Binds the steps to memory. Returns no steps if the library lacks a product.
BoundSteps bind(LibraryProducts& library, const ProductSteps& of, const Memories& memories) {
  BoundSteps bound;
  const std::span<std::byte> workspace = {at(memories, of.workspace), of.workspace_bytes};
  for (const auto& each : of.steps) {
    if (const auto* const copy = std::get_if<CopyStep>(&each)) {
      bound.steps.emplace_back(BoundCopy{*copy, at(memories, copy->from), at(memories, copy->to)});
      continue;
    }
    const auto& step = std::get<ProductStep>(each);
    const ProductMemory memory = {.a = at(memories, step.places[0]),
                                  .b = at(memories, step.places[1]),
                                  .c = at(memories, step.places[2]),
                                  .workspace = workspace};
    std::shared_ptr<const LibraryProduct> product = library.find(step, memory);
    if (product == nullptr) {
      return {};
    }
    bound.steps.emplace_back(BoundProduct{step, std::move(product), memory});
  }
  return bound;
}

LibraryWork work_of(LibraryProducts& library, const OpToPrepare& op) {
  const std::vector<graph::TensorType> inputs = op.input_types();
  const std::vector<graph::TensorType> outputs = op.output_types();
  const std::optional<ProductSteps> steps = product_steps(op.kernel.op, {op.attributes, inputs, outputs});
  if (!steps) {
    return nullptr;
  }
  const Memories memories = {static_cast<std::byte*>(op.inputs[0].data), static_cast<std::byte*>(op.inputs[1].data),
                             static_cast<std::byte*>(op.outputs[0].data),
                             op.scratch_at(ProductSteps::alignment, steps->scratch_bytes)};
  BoundSteps bound = bind(library, *steps, memories);
  if (bound.steps.empty()) {
    return nullptr;
  }
  return bound;
}

}  // namespace

std::unique_ptr<const PreparedKernel> prepare_product(LibraryProducts* library, OpToPrepare op) {
  return prepare_for_library(op, [&] { return library == nullptr ? nullptr : work_of(*library, op); });
}

std::unique_ptr<const PreparedKernel> fuse_product(LibraryProducts& library, const PreparedKernel& first,
                                                   const PreparedKernel& next) {
  const LibraryWork* const work = work_of(first);
  const auto* const product = work == nullptr ? nullptr : work->target<BoundSteps>();
  if (product == nullptr || product->steps.size() != 1) {
    return nullptr;
  }
  BoundProduct bound = std::get<BoundProduct>(product->steps.front());
  std::optional<Fusion> fusion = fusion_of(bound.step, bound.memory.epilogue, first, next);
  if (!fusion) {
    return nullptr;
  }
  bound.memory.c = fusion->outputs.front().data;
  bound.memory.epilogue = fusion->epilogue;
  bound.product = library.find(bound.step, bound.memory);
  if (bound.product == nullptr) {
    return nullptr;
  }
  return prepare_fused(first, next, std::move(fusion->inputs), std::move(fusion->outputs),
                       BoundSteps{{std::move(bound)}});
}

}  // namespace shardrun::device::cuda
