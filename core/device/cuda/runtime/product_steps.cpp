#include "core/device/cuda/runtime/product_steps.h"

#include <algorithm>
#include <utility>

#include "core/device/contraction.h"
#include "core/device/cuda/runtime/padded_product.h"
#include "core/device/cuda/runtime/product_scratch.h"
#include "core/device/op_products.h"

namespace shardrun::device::cuda {
namespace {

using graph::DType;

std::int64_t bytes_of(DType dtype) { return static_cast<std::int64_t>(graph::element_bytes(dtype)); }

bool is_for_library(DType a, DType b, DType c) {
  return (a == DType::f32 && b == DType::f32 && c == DType::f32) ||
         (a == DType::bf16 && b == DType::bf16 && (c == DType::bf16 || c == DType::f32));
}

std::optional<ProductSteps> steps_of_product(const Product& product, const std::array<std::size_t, 3>& tensors,
                                             const Padding& padding) {
  if (!is_for_library(product.a.dtype, product.b.dtype, product.c.dtype) || product.m == 0 || product.n == 0 ||
      product.k == 0) {
    return std::nullopt;
  }
  if (product.a.dtype == DType::bf16) {
    if (std::optional<ProductSteps> padded = padded_steps(product, tensors, padding)) {
      return padded;
    }
  }
  ProductSteps made;
  made.steps.emplace_back(
      ProductStep{.product = product,
                  .places = {Place{.tensor = tensors[0]}, Place{.tensor = tensors[1]}, Place{.tensor = tensors[2]}}});
  return ProductScratch().finished(std::move(made));
}

/// Letters of the batch whose indices are like those of one letter in all tensors.
struct BatchLoop {
  std::int64_t size = 1;
  std::array<std::int64_t, 3> strides = {};
};

/// Of all letters of the batch, innermost first.
std::vector<BatchLoop> batch_loops(const Contraction& of) {
  std::vector<BatchLoop> loops;
  for (auto letter = of.batch.rbegin(); letter != of.batch.rend(); ++letter) {
    const std::int64_t size = of.size(*letter);
    if (size == 1) {
      continue;
    }
    BatchLoop loop{.size = size};
    bool continues = !loops.empty();
    for (std::size_t t = 0; t < 3; ++t) {
      loop.strides[t] = of.packed[t].stride(*letter);
      continues = continues && loop.strides[t] == loops.back().strides[t] * loops.back().size;
    }
    if (continues) {
      loops.back().size *= size;
    } else {
      loops.push_back(loop);
    }
  }
  return loops;
}

CopyStep packing_of(const Contraction& of, std::size_t t, Place tensor, Place packed) {
  const Lettered& form = of.packed[t];
  CopyStep step{.from = tensor,
                .to = packed,
                .element_bytes = graph::element_bytes(form.dtype),
                .shape = form.sizes,
                .to_strides = form.strides,
                .only_adding = t == Place::result};
  for (const char letter : form.letters) {
    step.from_strides.push_back(of.tensors[t].stride(letter));
  }
  return step;
}

std::optional<ProductSteps> steps_of_einsum(const graph::OpShape& shape) {
  constexpr std::int64_t most_products = 64;  ///< each is a launch of its own
  const Contraction of(graph::parse_einsum(shape.attributes.text("spec")), shape);
  if (!of.products || !is_for_library(of.tensors[0].dtype, of.tensors[1].dtype, of.tensors[2].dtype) ||
      of.tensors[2].elements() == 0) {
    return std::nullopt;
  }
  ProductStep step{.product = of.product};
  std::vector<BatchLoop> loops = batch_loops(of);
  if (!loops.empty()) {
    const auto largest = std::ranges::max_element(loops, {}, &BatchLoop::size);
    step.batch = largest->size;
    step.batch_strides = largest->strides;
    loops.erase(largest);
  }
  std::int64_t products = 1;
  for (const BatchLoop& loop : loops) {
    products *= loop.size;
  }
  if (products > most_products) {
    return std::nullopt;
  }

  ProductSteps made;
  ProductScratch scratch;
  std::optional<CopyStep> unpacking;
  for (std::size_t t = 0; t < 3; ++t) {
    const Place tensor{.tensor = t < 2 && of.swapped ? 1 - t : t};
    step.places[t] = tensor;
    if (of.copied[t]) {
      step.places[t] = scratch.add(of.packed[t].elements() * bytes_of(of.packed[t].dtype));
      made.steps.emplace_back(packing_of(of, t, tensor, step.places[t]));
    }
  }
  if (of.copied[2]) {
    unpacking = packing_of(of, 2, {.tensor = Place::result}, step.places[2]);
    std::swap(unpacking->from, unpacking->to);
    std::swap(unpacking->from_strides, unpacking->to_strides);
    unpacking->only_adding = false;
  }
  for (std::int64_t number = 0; number < products; ++number) {
    ProductStep one = step;
    std::int64_t rest = number;
    for (const BatchLoop& loop : loops) {
      for (std::size_t t = 0; t < 3; ++t) {
        one.places[t].byte += rest % loop.size * loop.strides[t] * bytes_of(of.tensors[t].dtype);
      }
      rest /= loop.size;
    }
    made.steps.emplace_back(one);
  }
  if (unpacking) {
    made.steps.emplace_back(*std::move(unpacking));
  }
  return scratch.finished(std::move(made));
}

}  // namespace

bool is_product(std::string_view op) { return op == "matmul" || op == "matmul_gradient_weights" || op == "einsum"; }

std::optional<ProductSteps> product_steps(std::string_view op, const graph::OpShape& shape, const Padding& padding) {
  if (op == "einsum") {
    return steps_of_einsum(shape);
  }
  const TensorShape first(shape.inputs[0]);
  const TensorShape second(shape.inputs[1]);
  const TensorShape result(shape.outputs[0]);
  if (op == "matmul") {
    return steps_of_product(product_of_matmul(shape.attributes, first, second, result), {0, 1, Place::result}, padding);
  }
  const bool transposed = shape.attributes.integer("transpose") != 0;  // then its first operand is b
  return steps_of_product(product_of_weight_gradient(shape.attributes, first, second, result),
                          {transposed ? 1U : 0U, transposed ? 0U : 1U, Place::result}, padding);
}

}  // namespace shardrun::device::cuda
