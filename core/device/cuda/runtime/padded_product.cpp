#include "core/device/cuda/runtime/padded_product.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/device/cuda/runtime/product_scratch.h"

namespace shardrun::device::cuda {
namespace {

std::int64_t element_size(graph::DType dtype) { return static_cast<std::int64_t>(graph::element_bytes(dtype)); }

/// Tensor cores are fast where each stored row begins at a multiple of 16 bytes.
constexpr std::int64_t row_alignment = 16;
constexpr std::int64_t padded_alignment = 128;  ///< of rows in copies: a line of a GPU's cache

bool has_unaligned_rows(const Operand& operand) {
  return operand.stride * element_size(operand.dtype) % row_alignment != 0;
}

/// Rows and columns of an operand as it is stored, and where its part from (row, column) of the matrix on begins.
struct Stored {
  Stored(const Operand& operand, std::int64_t rows, std::int64_t columns)
      : height(operand.transposed ? columns : rows), width(operand.transposed ? rows : columns) {}
  std::int64_t height;
  std::int64_t width;
};
std::int64_t byte_of(const Operand& operand, std::int64_t row, std::int64_t column) {
  return (operand.transposed ? column * operand.stride + row : row * operand.stride + column) *
         element_size(operand.dtype);
}

/// A product whose operands are copied to the scratch so that their rows are aligned, and its result from there. The
/// rows of the result, or its columns, are made in parts, so that their copies take bounded memory.
class PaddedProduct {
 public:
  /// `tensors`: of the op, that are a, b and c.
  PaddedProduct(const Product& product, const std::array<std::size_t, 3>& tensors, const Padding& padding)
      : product_(product), tensors_(tensors), padding_(padding), operands_{product.a, product.b, product.c} {
    for (std::size_t t = 0; t < 3; ++t) {
      copied_[t] = has_unaligned_rows(operands_[t]);
    }
    // Rows of the result are those of a, columns those of b. The other operand is copied as a whole.
    by_rows_ = whole_bytes(true) <= whole_bytes(false);
    const std::int64_t size = by_rows_ ? product.m : product.n;
    const std::int64_t bytes = copied_bytes(by_rows_ ? 0 : 1) + copied_bytes(2);
    const std::int64_t parts = std::max<std::int64_t>(1, (bytes + padding.most_bytes - 1) / padding.most_bytes);
    part_ = std::min(size, (size + parts * part_multiple - 1) / (parts * part_multiple) * part_multiple);
  }

  /// Whether the time that copies take is likely to be less than what they save.
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

  /// A part of an operand: of the rows or columns of the result. The other operand's part is all of it.
  struct Part {
    std::int64_t byte = 0;  ///< where it begins in the operand
    Stored stored;
    Operand padded;
    std::int64_t bytes = 0;  ///< of its copy
  };
  [[nodiscard]] Part part_of(std::size_t t, std::int64_t first, std::int64_t count) const {
    const bool has_rows = t == 0 || (t == 2 && by_rows_);
    const std::int64_t rows = t == 1 ? product_.k : has_rows ? count : product_.m;
    const std::int64_t columns = t == 0 ? product_.k : has_rows ? product_.n : count;
    const Operand& operand = operands_[t];
    const Stored stored(operand, rows, columns);
    Operand padded = operand;
    const std::int64_t width = element_size(operand.dtype);
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
  [[nodiscard]] std::int64_t copied_bytes(std::size_t t) const {
    return elements(t) * element_size(operands_[t].dtype);
  }
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
  /// An operand of the product of a part.
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

}  // namespace

std::optional<ProductSteps> padded_steps(const Product& product, const std::array<std::size_t, 3>& tensors,
                                         const Padding& padding) {
  PaddedProduct padded(product, tensors, padding);
  return padded.is_worth_it() ? std::optional(padded.steps()) : std::nullopt;
}

}  // namespace shardrun::device::cuda
