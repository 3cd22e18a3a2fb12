#include <string>

#include "core/device/cuda/loops.h"
#include "core/device/cuda/matrix_product.h"
#include "core/device/cuda/product.h"
#include "core/graph/einsum.h"

// matmul, its gradient and einsum. A device with a library of products uses the library instead.

namespace shardrun::device::cuda {
namespace {

/// A matrix with one stride between rows and one along the inner index.
struct Matrix {
  using Row = std::int64_t;
  using Inner = std::int64_t;
  Reals data;
  std::int64_t row_stride;
  std::int64_t inner_stride;
  bool inner_is_fast;

  SHARDRUN_ON_DEVICE Row row(std::int64_t, std::int64_t m) const { return m * row_stride; }
  SHARDRUN_ON_DEVICE Inner inner(std::int64_t, std::int64_t k) const { return k * inner_stride; }
  SHARDRUN_ON_DEVICE float get(Row row, Inner inner) const { return data.get(row + inner); }
};

/// A matrix stored as [rows, k], or as [k, rows].
Matrix matrix_of(const TensorView& tensor, std::int64_t rows, std::int64_t inner, bool inner_is_last) {
  return inner_is_last ? Matrix{reals(tensor), inner, 1, true} : Matrix{reals(tensor), 1, rows, false};
}

struct Rows {
  Reals y;
  std::int64_t columns;
  bool accumulate;
  SHARDRUN_ON_DEVICE void put(std::int64_t, std::int64_t m, std::int64_t n, float value) const {
    y.put(m * columns + n, value, accumulate);
  }
};

bool are_bfloat(const TensorView& a, const TensorView& b) {
  return a.dtype == graph::DType::bf16 && b.dtype == graph::DType::bf16;
}

/// `length`: the size of the tensor's last dimension when it is viewed as a matrix.
BfloatOperand bfloat_operand(const TensorView& tensor, std::int64_t length) {
  return {static_cast<const std::uint16_t*>(tensor.data), length, length % 8 == 0 && is_aligned(tensor)};
}

/// y[l, n] = sum over k of x[l, k] w[k, n], or w[n, k] when transposed. `contract` trailing dimensions of x are k.
void matmul(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const TensorView& w = call.inputs[1];
  const auto contract = static_cast<std::uint32_t>(call.attributes.integer("contract"));
  const bool transpose = call.attributes.integer("transpose") != 0;
  const std::int64_t ls = extent(x, 0, x.rank - contract);
  const std::int64_t ks = extent(x, x.rank - contract, x.rank);
  const std::int64_t ns = transpose ? extent(w, 0, w.rank - contract) : extent(w, contract, w.rank);
  if (are_bfloat(x, w)) {
    const BfloatOperand of_x = bfloat_operand(x, ks);
    if (transpose) {
      multiply_matrices<true, true>(call, ls, ns, ks, of_x, bfloat_operand(w, ks), reals(call.outputs[0]));
    } else {
      multiply_matrices<true, false>(call, ls, ns, ks, of_x, bfloat_operand(w, ns), reals(call.outputs[0]));
    }
    return;
  }
  multiply(call, 1, ls, ns, ks, matrix_of(x, ls, ks, true), matrix_of(w, ns, ks, transpose),
           Rows{reals(call.outputs[0]), ns, call.accumulate});
}

/// dw[k, n] = sum over l of x[l, k] dy[l, n], laid out as [n, k] when transposed.
void matmul_gradient_weights(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const TensorView& dy = call.inputs[1];
  const auto contract = static_cast<std::uint32_t>(call.attributes.integer("contract"));
  const std::uint32_t leading = x.rank - contract;
  const std::int64_t ls = extent(x, 0, leading);
  const std::int64_t ks = extent(x, leading, x.rank);
  const std::int64_t ns = extent(dy, leading, dy.rank);
  if (are_bfloat(x, dy)) {
    const BfloatOperand of_x = bfloat_operand(x, ks);
    const BfloatOperand of_dy = bfloat_operand(dy, ns);
    if (call.attributes.integer("transpose") != 0) {
      multiply_matrices<false, false>(call, ns, ks, ls, of_dy, of_x, reals(call.outputs[0]));
    } else {
      multiply_matrices<false, false>(call, ks, ns, ls, of_x, of_dy, reals(call.outputs[0]));
    }
    return;
  }
  const Matrix of_x = matrix_of(x, ks, ls, false);
  const Matrix of_dy = matrix_of(dy, ns, ls, false);
  const Reals dw = reals(call.outputs[0]);
  if (call.attributes.integer("transpose") != 0) {
    multiply(call, 1, ns, ks, ls, of_dy, of_x, Rows{dw, ks, call.accumulate});
  } else {
    multiply(call, 1, ks, ns, ls, of_x, of_dy, Rows{dw, ns, call.accumulate});
  }
}

/// An operand of einsum. Each group of its letters (batch, rows, inner) is a nest of loops.
struct Letters {
  using Row = std::int64_t;
  using Inner = std::int64_t;
  Reals data;
  Loops<1> batches;
  Loops<1> rows;
  Loops<1> summed;
  bool inner_is_fast;

  SHARDRUN_ON_DEVICE Row row(std::int64_t batch, std::int64_t m) const {
    return batches.offset(batch) + rows.offset(m);
  }
  SHARDRUN_ON_DEVICE Inner inner(std::int64_t, std::int64_t k) const { return summed.offset(k); }
  SHARDRUN_ON_DEVICE float get(Row row, Inner inner) const { return data.get(row + inner); }
};

struct LettersOfResult {
  Reals y;
  Loops<1> batches;
  Loops<1> rows;
  Loops<1> columns;
  bool accumulate;
  SHARDRUN_ON_DEVICE void put(std::int64_t batch, std::int64_t m, std::int64_t n, float value) const {
    y.put(batches.offset(batch) + rows.offset(m) + columns.offset(n), value, accumulate);
  }
};

/// The distance in elements between neighbouring indices of a letter; 0 if the tensor lacks the letter.
std::int64_t stride_of(const TensorView& tensor, const std::string& letters, char letter) {
  const std::size_t at = letters.find(letter);
  return at == std::string::npos ? 0 : extent(tensor, static_cast<std::uint32_t>(at) + 1, tensor.rank);
}

/// y[i] = sum over r of a[i, r] b[i, r], with i the indices of the result's letters and r the other letters' indices.
/// Letters of the result that both operands have are the batch; letters that only one has are rows or columns.
void einsum(const KernelCall& call) {
  const graph::Einsum einsum = graph::parse_einsum(call.attributes.text("spec"));
  const TensorView& of_a = call.inputs[0];
  const TensorView& of_b = call.inputs[1];
  Letters a = {.data = reals(of_a), .batches = {}, .rows = {}, .summed = {}, .inner_is_fast = false};
  Letters b = {.data = reals(of_b), .batches = {}, .rows = {}, .summed = {}, .inner_is_fast = false};
  LettersOfResult y = {reals(call.outputs[0]), {}, {}, {}, call.accumulate};
  std::int64_t batch = 1;
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  std::int64_t inner = 1;
  const auto size_of = [&](char letter) {
    const std::size_t in_a = einsum.a.find(letter);
    return in_a != std::string::npos ? of_a.shape[in_a] : of_b.shape[einsum.b.find(letter)];
  };
  for (auto letter = einsum.result.rbegin(); letter != einsum.result.rend(); ++letter) {
    const std::int64_t size = size_of(*letter);
    const std::int64_t in_a = stride_of(of_a, einsum.a, *letter);
    const std::int64_t in_b = stride_of(of_b, einsum.b, *letter);
    const std::int64_t in_y = stride_of(call.outputs[0], einsum.result, *letter);
    const bool a_has_it = einsum.a.find(*letter) != std::string::npos;
    const bool b_has_it = einsum.b.find(*letter) != std::string::npos;
    if (a_has_it && b_has_it) {
      a.batches.add_outer(size, in_a);
      b.batches.add_outer(size, in_b);
      y.batches.add_outer(size, in_y);
      batch *= size;
    } else if (a_has_it) {
      a.rows.add_outer(size, in_a);
      y.rows.add_outer(size, in_y);
      rows *= size;
    } else {
      b.rows.add_outer(size, in_b);
      y.columns.add_outer(size, in_y);
      columns *= size;
    }
  }
  const std::string summed = graph::summed_letters(einsum);
  for (auto letter = summed.rbegin(); letter != summed.rend(); ++letter) {
    const std::int64_t size = size_of(*letter);
    a.summed.add_outer(size, stride_of(of_a, einsum.a, *letter));
    b.summed.add_outer(size, stride_of(of_b, einsum.b, *letter));
    inner *= size;
  }
  a.inner_is_fast = a.summed.consecutive() > 1;
  b.inner_is_fast = b.summed.consecutive() > 1;
  multiply(call, batch, rows, columns, inner, a, b, y);
}

const AddKernels products({{"matmul", {.run = matmul}},
                           {"matmul_gradient_weights", {.run = matmul_gradient_weights}},
                           {"einsum", {.run = einsum}}});

}  // namespace
}  // namespace shardrun::device::cuda
