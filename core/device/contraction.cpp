#include "core/device/contraction.h"

#include <algorithm>

namespace shardrun::device {
namespace {

bool has(const std::string& letters, char letter) { return letters.find(letter) != std::string::npos; }

/// The stride of the one dimension that several letters, outermost first, form together. Nothing if the letters do not
/// form one dimension; 0 if the dimension has only one index.
std::optional<std::int64_t> joint_stride(const Lettered& tensor, const std::string& letters) {
  std::int64_t stride = 0;
  std::int64_t next = 0;  // the stride that the next outer letter needs
  for (auto letter = letters.rbegin(); letter != letters.rend(); ++letter) {
    const std::int64_t size = tensor.size(*letter);
    if (size == 1) {
      continue;
    }
    if (next != 0 && tensor.stride(*letter) != next) {
      return std::nullopt;
    }
    stride = next == 0 ? tensor.stride(*letter) : stride;
    next = tensor.stride(*letter) * size;
  }
  return stride;
}

}  // namespace

Lettered::Lettered(std::string text, graph::DType type, std::vector<std::int64_t> shape)
    : letters(std::move(text)), dtype(type), sizes(std::move(shape)), strides(sizes.size()) {
  std::int64_t next = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    strides[d] = next;
    next *= sizes[d];
  }
}

std::int64_t Lettered::size(char letter) const { return has(letters, letter) ? sizes[letters.find(letter)] : 1; }

std::int64_t Lettered::stride(char letter) const { return has(letters, letter) ? strides[letters.find(letter)] : 0; }

std::int64_t Lettered::count(const std::string& some) const {
  std::int64_t product = 1;
  for (const char letter : some) {
    product *= size(letter);
  }
  return product;
}

std::optional<Operand> Lettered::matrix(const std::string& rows, const std::string& columns) const {
  const std::optional<std::int64_t> down = joint_stride(*this, rows);
  const std::optional<std::int64_t> across = joint_stride(*this, columns);
  if (!down || !across) {
    return std::nullopt;
  }
  if (*across <= 1) {
    return Operand{nullptr, dtype, std::max(*down, count(columns))};
  }
  if (*down <= 1) {
    return Operand{nullptr, dtype, std::max(*across, count(rows)), true};
  }
  return std::nullopt;
}

namespace {

/// A product with fewer multiplications is not worth a library call.
constexpr std::int64_t small_product = 512;

/// Sorts the letters into batch, rows, columns and inner. Returns false if a summed letter is in one operand only.
bool classify(Contraction& made) {
  const auto& [a, b, y] = made.tensors;
  for (const char letter : y.letters) {
    std::string& kind = !has(a.letters, letter) ? made.columns : !has(b.letters, letter) ? made.rows : made.batch;
    kind += letter;
  }
  for (const char letter : made.summed) {
    if (!has(a.letters, letter) || !has(b.letters, letter)) {
      return false;
    }
    made.inner += letter;
  }
  return true;
}

/// Moves outer letters of the result to the batch until the rest is a matrix, if the matrices stay large enough.
void split_result(Contraction& made) {
  constexpr std::int64_t large_product = 1 << 18;
  constexpr std::int64_t large_side = 16;
  Contraction split = made;
  for (const char letter : made.tensors[2].letters) {
    if (split.tensors[2].matrix(split.rows, split.columns)) {
      made = split;
      return;
    }
    std::erase(split.rows, letter);
    std::erase(split.columns, letter);
    split.batch += has(split.batch, letter) ? "" : std::string(1, letter);
    const std::int64_t m = made.tensors[0].count(split.rows);
    const std::int64_t n = made.tensors[1].count(split.columns);
    if (std::min(m, n) < large_side || m * n * made.tensors[0].count(made.inner) < large_product) {
      return;
    }
  }
}

/// Returns the tensor as a matrix. If its elements are not laid out as one, plans a packed copy that is.
Operand as_matrix(Contraction& made, std::size_t number, const std::string& rows, const std::string& columns) {
  const Lettered& tensor = made.tensors[number];
  made.packed[number] = tensor;
  std::optional<Operand> matrix = tensor.matrix(rows, columns);
  if (!matrix || (number == 2 && matrix->transposed)) {
    made.copied[number] = true;
    const std::string letters = made.batch + rows + columns;
    std::vector<std::int64_t> shape;
    std::string present;
    for (const char letter : letters) {
      if (has(tensor.letters, letter)) {
        present += letter;
        shape.push_back(tensor.size(letter));
      }
    }
    made.packed[number] = Lettered(present, tensor.dtype, shape);
    matrix = made.packed[number].matrix(rows, columns);
  }
  return *matrix;
}

}  // namespace

std::int64_t Contraction::size(char letter) const {
  return tensors[has(tensors[0].letters, letter) ? 0 : 1].size(letter);
}

std::int64_t Contraction::offset(std::size_t tensor, std::int64_t number) const {
  std::int64_t sum = 0;
  for (auto letter = batch.rbegin(); letter != batch.rend(); ++letter) {
    sum += number % size(*letter) * packed[tensor].stride(*letter);
    number /= size(*letter);
  }
  return sum;
}

Contraction::Contraction(const graph::Einsum& einsum, const graph::OpShape& shape)
    : tensors({Lettered(einsum.a, shape.inputs[0].dtype, shape.inputs[0].shape),
               Lettered(einsum.b, shape.inputs[1].dtype, shape.inputs[1].shape),
               Lettered(einsum.result, shape.outputs[0].dtype, shape.outputs[0].shape)}),
      summed(graph::summed_letters(einsum)) {
  if (!classify(*this)) {
    return;
  }
  const std::int64_t k = tensors[0].count(inner);
  const std::int64_t results = tensors[0].count(rows) * tensors[1].count(columns);
  // The plain loops cannot read float16.
  const bool has_halves =
      std::ranges::any_of(tensors, [](const Lettered& tensor) { return tensor.dtype == graph::DType::f16; });
  products =
      (results * k >= small_product && results > 1 && k > 1) || has_halves || graph::has_fixed_order(shape.attributes);
  if (!products) {
    return;
  }
  split_result(*this);
  const std::optional<Operand> result = tensors[2].matrix(rows, columns);
  if (result && result->transposed) {
    std::swap(tensors[0], tensors[1]);
    std::swap(rows, columns);
    swapped = true;
  }
  product = {tensors[0].count(rows),           tensors[1].count(columns),           k,
             as_matrix(*this, 0, rows, inner), as_matrix(*this, 1, inner, columns), as_matrix(*this, 2, rows, columns)};
  product.fixed_order = graph::has_fixed_order(shape.attributes);
}

}  // namespace shardrun::device
