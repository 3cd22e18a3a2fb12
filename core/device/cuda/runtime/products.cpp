#include "core/device/cuda/runtime/products.h"

#include <array>
#include <optional>
#include <utility>
#include <variant>

#include "core/device/cuda/copies.h"
#include "core/device/cuda/runtime/product_fusion.h"
#include "core/device/cuda/runtime/product_steps.h"

namespace shardrun::device::cuda {
namespace {

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

/// The steps of an op.
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

/// Where the op's tensors and scratch are.
using Memories = std::array<std::byte*, 4>;

std::byte* at(const Memories& memories, const Place& place) { return memories[place.tensor] + place.byte; }

/// The steps; none if the library lacks a product.
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
