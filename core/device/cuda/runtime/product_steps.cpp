#include "core/device/cuda/runtime/product_steps.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/device/contraction.h"
#include "core/device/op_products.h"
#include "core/memory/layout.h"

namespace shardrun::device::cuda {
namespace {

using graph::DType;

std::int64_t bytes_of(DType dtype) { return static_cast<std::int64_t>(graph::element_bytes(dtype)); }

/// Lays out the scratch of a list of steps.
class ProductScratch {
 public:
  /// Reserves room that no other place shares.
  [[nodiscard]] Place add(std::int64_t bytes);
  /// The steps with their workspace, and the total size of the scratch.
  [[nodiscard]] ProductSteps finished(ProductSteps steps);

 private:
  std::int64_t end_ = 0;
};

/// Bytes of workspace, at most the largest size that NVIDIA recommends (for Hopper). The workspace holds the sums of
/// parts of k, each as large as the result in float32. The library splits k if the result alone leaves a GPU idle.
std::int64_t workspace_of(const ProductStep& step) {
  constexpr std::int64_t most = std::int64_t{32} << 20;
  constexpr std::int64_t most_parts = 16;
  constexpr std::int64_t least_k = 64;
  const Product& product = step.product;
  const std::int64_t parts = std::min(product.k / least_k, most_parts);
  return std::min(most, step.batch * product.m * product.n * static_cast<std::int64_t>(sizeof(float)) * parts);
}

Place ProductScratch::add(std::int64_t bytes) {
  const Place place = {.tensor = Place::scratch, .byte = end_};
  end_ += static_cast<std::int64_t>(memory::align_up(static_cast<std::uint64_t>(bytes), ProductSteps::alignment));
  return place;
}

ProductSteps ProductScratch::finished(ProductSteps steps) {
  std::int64_t workspace = 0;
  for (const auto& step : steps.steps) {
    if (const auto* const product = std::get_if<ProductStep>(&step)) {
      workspace = std::max(workspace, workspace_of(*product));
    }
  }
  steps.workspace_bytes = static_cast<std::size_t>(workspace);
  steps.workspace = add(workspace);
  if (end_ > 0) {
    steps.scratch_bytes = static_cast<std::size_t>(end_) + ProductSteps::alignment - memory::alignment;
  }
  return steps;
}

/// Tensor cores are fast if each stored row begins at a multiple of 16 bytes.
constexpr std::int64_t row_alignment = 16;
constexpr std::int64_t padded_alignment = 128;  ///< of rows in copies: a cache line of a GPU

bool has_unaligned_rows(const Operand& operand) {
  return operand.stride * bytes_of(operand.dtype) % row_alignment != 0;
}

/// The rows and columns of an operand as it is stored. byte_of() says where element (row, column) of the matrix lies.
struct Stored {
  Stored(const Operand& operand, std::int64_t rows, std::int64_t columns)
      : height(operand.transposed ? columns : rows), width(operand.transposed ? rows : columns) {}
  std::int64_t height;
  std::int64_t width;
};
std::int64_t byte_of(const Operand& operand, std::int64_t row, std::int64_t column) {
  return (operand.transposed ? column * operand.stride + row : row * operand.stride + column) * bytes_of(operand.dtype);
}

/// A product with aligned rows. Operands whose rows are not aligned are copied to the scratch. A result whose rows are
/// not aligned is copied back from the scratch. The result is computed in parts, by rows or by columns, so that the
/// copies take little memory.
class PaddedProduct {
 public:
  /// `tensors`: which tensors of the op are a, b and c.
  PaddedProduct(const Product& product, const std::array<std::size_t, 3>& tensors, const Padding& padding)
      : product_(product), tensors_(tensors), padding_(padding), operands_{product.a, product.b, product.c} {
    for (std::size_t t = 0; t < 3; ++t) {
      copied_[t] = has_unaligned_rows(operands_[t]);
    }
    // A part has rows of the result and of a, or columns of the result and of b. The other operand is copied whole.
    by_rows_ = whole_bytes(true) <= whole_bytes(false);
    const std::int64_t size = by_rows_ ? product.m : product.n;
    const std::int64_t bytes = copied_bytes(by_rows_ ? 0 : 1) + copied_bytes(2);
    const std::int64_t parts = std::max<std::int64_t>(1, (bytes + padding.most_bytes - 1) / padding.most_bytes);
    part_ = std::min(size, (size + parts * part_multiple - 1) / (parts * part_multiple) * part_multiple);
  }

  /// Whether the copies are likely to take less time than they save.
  [[nodiscard]] bool is_worth_it() const {
    const std::int64_t terms = product_.m * product_.n * product_.k;
    const std::int64_t copied = elements(0) + elements(1) + elements(2);
    return copied > 0 && terms >= padding_.least_terms && terms / copied >= padding_.least_terms_a_copy;
  }

  [[nodiscard]] ProductSteps steps() {
    const std::size_t split = by_rows_ ? 0 : 1;
    const std::size_t other = 1 - split;
    if (copied_[other]) {
      const Part whole = part_of(other, 0, other == 0 ? product_.m : product_.n);
      places_[other] = scratch_.add(whole.bytes);
      made_.steps.emplace_back(copy_in(other, whole));
    }
    const std::int64_t size = by_rows_ ? product_.m : product_.n;
    for (const std::size_t t : {split, Place::result}) {
      if (copied_[t]) {
        places_[t] = scratch_.add(part_of(t, 0, part_).bytes);
      }
    }
    for (std::int64_t at = 0; at < size; at += part_) {
      add_part(at, std::min(part_, size - at));
    }
    return scratch_.finished(std::move(made_));
  }

 private:
  static constexpr std::int64_t part_multiple = 128;

  /// The part of an operand that belongs to some rows or columns of the result. For one operand it is always the whole.
  struct Part {
    std::int64_t byte = 0;  ///< where it begins in the operand
    Stored stored;
    Operand padded;
    std::int64_t bytes = 0;  ///< bytes of its copy
  };
  [[nodiscard]] Part part_of(std::size_t t, std::int64_t first, std::int64_t count) const {
    const bool has_rows = t == 0 || (t == 2 && by_rows_);
    const std::int64_t rows = t == 1 ? product_.k : has_rows ? count : product_.m;
    const std::int64_t columns = t == 0 ? product_.k : has_rows ? product_.n : count;
    const Operand& operand = operands_[t];
    const Stored stored(operand, rows, columns);
    Operand padded = operand;
    const std::int64_t width = bytes_of(operand.dtype);
    padded.stride = (stored.width * width + padded_alignment - 1) / padded_alignment * padded_alignment / width;
    return {.byte = has_rows ? byte_of(operand, first, 0) : byte_of(operand, 0, first),
            .stored = stored,
            .padded = padded,
            .bytes = stored.height * padded.stride * width};
  }
  [[nodiscard]] std::int64_t elements(std::size_t t) const {
    const std::array<std::int64_t, 3> counts = {product_.m * product_.k, product_.k * product_.n,
                                                product_.m * product_.n};
    return copied_[t] ? counts[t] : 0;
  }
  [[nodiscard]] std::int64_t copied_bytes(std::size_t t) const { return elements(t) * bytes_of(operands_[t].dtype); }
  [[nodiscard]] std::int64_t whole_bytes(bool by_rows) const { return copied_bytes(by_rows ? 1 : 0); }

  [[nodiscard]] CopyStep copy_in(std::size_t t, const Part& part) const {
    return {.from = {.tensor = tensors_[t], .byte = part.byte},
            .to = places_[t],
            .element_bytes = graph::element_bytes(operands_[t].dtype),
            .shape = {part.stored.height, part.stored.width},
            .from_strides = {operands_[t].stride, 1},
            .to_strides = {part.padded.stride, 1},
            .only_adding = t == Place::result};
  }
  /// An operand of a part's product, and its place.
  [[nodiscard]] std::pair<Operand, Place> operand_of(std::size_t t, const Part& part) const {
    return copied_[t] ? std::pair(part.padded, places_[t])
                      : std::pair(operands_[t], Place{.tensor = tensors_[t], .byte = part.byte});
  }

  void add_part(std::int64_t first, std::int64_t count) {
    const std::size_t split = by_rows_ ? 0 : 1;
    const std::array<Part, 3> parts = {split == 0 ? part_of(0, first, count) : part_of(0, 0, product_.m),
                                       split == 1 ? part_of(1, first, count) : part_of(1, 0, product_.n),
                                       part_of(2, first, count)};
    for (const std::size_t t : {split, Place::result}) {
      if (copied_[t]) {
        made_.steps.emplace_back(copy_in(t, parts[t]));
      }
    }
    ProductStep step;
    step.product = {by_rows_ ? count : product_.m, by_rows_ ? product_.n : count, product_.k, {}, {}, {}};
    std::tie(step.product.a, step.places[0]) = operand_of(0, parts[0]);
    std::tie(step.product.b, step.places[1]) = operand_of(1, parts[1]);
    std::tie(step.product.c, step.places[2]) = operand_of(2, parts[2]);
    made_.steps.emplace_back(step);
    if (copied_[2]) {
      CopyStep back = copy_in(2, parts[2]);
      std::swap(back.from, back.to);
      std::swap(back.from_strides, back.to_strides);
      back.only_adding = false;
      made_.steps.emplace_back(std::move(back));
    }
  }

  Product product_;
  std::array<std::size_t, 3> tensors_;
  Padding padding_;
  std::array<Operand, 3> operands_;
  std::array<bool, 3> copied_ = {};
  bool by_rows_ = true;
  std::int64_t part_ = 0;
  std::array<Place, 3> places_ = {};
  ProductScratch scratch_;
  ProductSteps made_;
};

/// The steps of a bfloat16 product whose unaligned operands and result are copied. Nothing if all are aligned, or if
/// copies are not worth it. `tensors`: which tensors of the op are a, b and c.
std::optional<ProductSteps> padded_steps(const Product& product, const std::array<std::size_t, 3>& tensors,
                                         const Padding& padding) {
  PaddedProduct padded(product, tensors, padding);
  return padded.is_worth_it() ? std::optional(padded.steps()) : std::nullopt;
}

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

/// Batch letters that can be treated as one letter in all tensors.
struct BatchLoop {
  std::int64_t size = 1;
  std::array<std::int64_t, 3> strides = {};
};

/// Loops for all letters of the batch, the innermost first.
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
  constexpr std::int64_t most_products = 64;  ///< each is a separate launch
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
  const bool transposed = shape.attributes.integer("transpose") != 0;  // then the op's first operand is b
  return steps_of_product(product_of_weight_gradient(shape.attributes, first, second, result),
                          {transposed ? 1U : 0U, transposed ? 0U : 1U, Place::result}, padding);
}

}  // namespace shardrun::device::cuda
