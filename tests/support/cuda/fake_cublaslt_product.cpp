#include "tests/support/cuda/fake_cublaslt_product.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

namespace shardrun::test::fake_cuda {
namespace {

float element_of(const FakeLayout& layout, const std::byte* data, std::size_t index) {
  if (layout.type == CUDA_R_16BF) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, data + 2 * index, 2);
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
  }
  float value = 0;
  std::memcpy(&value, data + 4 * index, 4);
  return value;
}

void set_element(const FakeLayout& layout, std::byte* data, std::size_t index, float value) {
  if (layout.type == CUDA_R_32F) {
    std::memcpy(data + 4 * index, &value, 4);
    return;
  }
  const auto all = std::bit_cast<std::uint32_t>(value);
  const bool is_nan = (all & 0x7FFFFFFFU) > 0x7F800000U;
  const auto bits = static_cast<std::uint16_t>(is_nan ? 0x7FC0U : (all + 0x7FFFU + ((all >> 16U) & 1U)) >> 16U);
  std::memcpy(data + 2 * index, &bits, 2);
}

/// The elements of a matrix, or of its transpose, in row-major order.
std::vector<float> rows_of(const FakeLayout& layout, const std::byte* data, bool transposed) {
  std::vector<float> rows;
  rows.reserve(layout.rows * layout.columns);
  const std::size_t height = transposed ? layout.columns : layout.rows;
  const std::size_t width = transposed ? layout.rows : layout.columns;
  const auto leading = static_cast<std::size_t>(layout.leading);
  for (std::size_t row = 0; row < height; ++row) {
    for (std::size_t column = 0; column < width; ++column) {
      rows.push_back(element_of(layout, data, transposed ? row * leading + column : column * leading + row));
    }
  }
  return rows;
}

/// GELU by its approximation x (1 + tanh(p(x))) / 2 with a polynomial p, and its derivative. Hendrycks and Gimpel 2016,
/// arXiv:1606.08415, section 2.
struct GeluTanh {
  double x;
  double left;  ///< (1 + tanh(p(x))) / 2
  explicit GeluTanh(double of) : x(of), left(0.5 * (1 + std::tanh(root * (x + cubic * x * x * x)))) {}
  [[nodiscard]] double value() const { return x * left; }
  [[nodiscard]] double slope() const { return left + 2 * x * left * (1 - left) * root * (1 + 3 * cubic * x * x); }
  static constexpr double root = 0.79788456080286536;  // sqrt(2 / pi)
  static constexpr double cubic = 0.044715;
};

/// The value to store for an element of the product, after the epilogue.
float after_epilogue(const Choice& choice, const Arguments& of, std::size_t row, std::size_t column, float sum) {
  const FakeOperation& operation = choice.operation;
  const FakeLayout& d = choice.layouts[3];
  sum += operation.has_bias() ? element_of(d, of.bias, row) : 0;
  const std::size_t at = column * static_cast<std::size_t>(operation.aux_leading) + row;
  if (operation.has_gelu()) {
    if (operation.has_aux()) {
      set_element(d, of.aux, at, sum);
    }
    return static_cast<float>(GeluTanh(sum).value());
  }
  return operation.has_gelu_gradient() ? static_cast<float>(sum * GeluTanh(element_of(d, of.aux, at)).slope()) : sum;
}

bool is_aligned(const void* memory, std::size_t to) { return reinterpret_cast<std::uintptr_t>(memory) % to == 0; }

/// Why the operation does not have exactly what its epilogue needs; "" if it has.
std::string epilogue_fault_of(const FakeOperation& operation, const FakeLayout& d) {
  constexpr std::array<std::uint32_t, 7> known = {
      CUBLASLT_EPILOGUE_DEFAULT,  CUBLASLT_EPILOGUE_BIAS,          CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS,
      CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU};
  if (std::ranges::find(known, operation.epilogue) == known.end()) {
    return "an epilogue is not known";
  }
  if (operation.has_bias() != (operation.bias != nullptr) || operation.has_aux() != (operation.aux != nullptr)) {
    return "an epilogue lacks its vector or its matrix, or has one that it does not use";
  }
  if (operation.epilogue != CUBLASLT_EPILOGUE_DEFAULT && d.batch != 1) {
    return "an epilogue of a batch has no strides";
  }
  if (operation.has_aux() && (operation.aux_leading < static_cast<std::int64_t>(d.rows) ||
                              operation.aux_leading % 8 != 0 || !is_aligned(operation.aux, 16))) {
    return "operands of GELU are less than the rows, not a multiple of 8, or not aligned to 16 bytes";
  }
  return "";
}

bool overlap(const void* one, std::size_t bytes, const void* other, std::size_t other_bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(one);
  const auto other_begin = reinterpret_cast<std::uintptr_t>(other);
  return begin < other_begin + other_bytes && other_begin < begin + bytes;
}

/// Why the memory of an epilogue's vector or matrix is not valid: it must be completely on the GPU and must not overlap
/// memory that is written. A matrix that is written must not overlap memory that is read. "" if it is valid.
std::string epilogue_memory_fault_of(const Choice& choice, const FakeOperation& operation,
                                     const std::array<const void*, 4>& memory, const Lent& lent) {
  const FakeLayout& d = choice.layouts[3];
  const std::size_t bias_bytes = operation.has_bias() ? d.rows * d.element_bytes() : 0;
  const std::size_t aux_bytes =
      operation.has_aux()
          ? ((d.columns - 1) * static_cast<std::size_t>(operation.aux_leading) + d.rows) * d.element_bytes()
          : 0;
  if ((bias_bytes > 0 && !lent.is_on_gpu(operation.bias, bias_bytes)) ||
      (aux_bytes > 0 && !lent.is_on_gpu(operation.aux, aux_bytes))) {
    return "a vector or a matrix of an epilogue is not on the GPU as a whole";
  }
  if (overlap(operation.bias, bias_bytes, memory[3], d.bytes()) ||
      overlap(operation.aux, aux_bytes, memory[3], d.bytes())) {
    return "the result is over a vector or a matrix of the epilogue";
  }
  for (std::size_t i = 0; i < 3; ++i) {
    const std::size_t bytes = choice.layouts[i].bytes();
    if ((i < 2 && overlap(memory[i], bytes, memory[3], d.bytes())) ||
        (operation.has_gelu() && overlap(memory[i], bytes, operation.aux, aux_bytes))) {
      return "what is written is over what is read";
    }
  }
  return "";
}

}  // namespace

bool has_unaligned_rows(const FakeLayout& layout) {
  return layout.leading * static_cast<std::int64_t>(layout.element_bytes()) % 16 != 0;
}

void multiply(const Choice& choice, const Arguments& of) {
  const auto& [a, b, c, d] = choice.layouts;
  const bool transposed_a = choice.operation.transpose_a == CUBLAS_OP_T;
  const bool transposed_b = choice.operation.transpose_b == CUBLAS_OP_T;
  const std::size_t inner = transposed_a ? a.rows : a.columns;
  for (std::int32_t number = 0; number < d.batch; ++number) {
    const auto begin = [&](const FakeLayout& layout) {
      return static_cast<std::size_t>(number * layout.batch_stride) * layout.element_bytes();
    };
    const std::vector<float> rows = rows_of(a, of.a + begin(a), transposed_a);
    const std::vector<float> columns = rows_of(b, of.b + begin(b), !transposed_b);
    std::byte* const to = of.d + begin(d);
    for (std::size_t column = 0; column < d.columns; ++column) {
      for (std::size_t row = 0; row < d.rows; ++row) {
        const float* const left = rows.data() + row * inner;
        const float* const right = columns.data() + column * inner;
        float sum = 0;
        for (std::size_t k = 0; k < inner; ++k) {
          sum += left[k] * right[k];
        }
        const std::size_t at = column * static_cast<std::size_t>(d.leading) + row;
        const float before = of.beta == 0 ? 0 : of.beta * element_of(c, of.c + begin(c), at);
        set_element(d, to, at, after_epilogue(choice, of, row, column, of.alpha * sum + before));
      }
    }
  }
}

std::string mismatch_of(const Choice& choice) {
  const auto& [a, b, c, d] = choice.layouts;
  const bool transposed_a = choice.operation.transpose_a == CUBLAS_OP_T;
  const bool transposed_b = choice.operation.transpose_b == CUBLAS_OP_T;
  if ((transposed_a ? a.columns : a.rows) != d.rows || (transposed_b ? b.rows : b.columns) != d.columns ||
      (transposed_a ? a.rows : a.columns) != (transposed_b ? b.columns : b.rows) || c != d) {
    return "the matrices do not fit each other";
  }
  for (const FakeLayout& layout : choice.layouts) {
    if (layout.leading < static_cast<std::int64_t>(layout.rows) || layout.rows == 0 || layout.columns == 0) {
      return "a leading dimension is less than the rows, or a matrix is empty";
    }
    if (layout.batch != d.batch || layout.batch < 1) {
      return "the batches differ";
    }
  }
  if (a.type != b.type || (a.type == CUDA_R_32F && d.type != CUDA_R_32F) ||
      choice.operation.compute != CUBLAS_COMPUTE_32F || choice.operation.scale != CUDA_R_32F) {
    return "these types are not multiplied with sums in float32";
  }
  if ((choice.preference.reductions & ~std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}) != 0) {
    return "sums of parts may be rounded to the type of the result, or be added up in any order";
  }
  for (const std::uint32_t alignment : choice.preference.alignments) {
    if (!std::has_single_bit(alignment)) {
      return "an alignment is no power of two";
    }
  }
  return epilogue_fault_of(choice.operation, d);
}

std::string fault_of(const Choice& choice, const FakeOperation& operation, const Memories& memories, const Lent& lent) {
  const auto& [memory, workspace, workspace_bytes] = memories;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const std::string name(1, "abcd"[i]);
    if (!lent.is_on_gpu(memory[i], choice.layouts[i].bytes())) {
      return "the matrix " + name + " is not on the GPU as a whole";
    }
    if (!is_aligned(memory[i], choice.preference.alignments[i])) {
      return "the matrix " + name + " is not aligned as was promised";
    }
  }
  if (memory[2] != memory[3] && overlap(memory[2], choice.layouts[2].bytes(), memory[3], choice.layouts[3].bytes())) {
    return "c is over d, and is not d";
  }
  if (workspace_bytes < choice.workspace_bytes() || workspace_bytes > choice.preference.workspace_bytes) {
    return "the workspace has " + std::to_string(workspace_bytes) + " bytes, which was not said before";
  }
  if (workspace_bytes > 0 && (!lent.is_on_gpu(workspace, workspace_bytes) || !is_aligned(workspace, 256))) {
    return "the workspace is not on the GPU as a whole, or not aligned to 256 bytes";
  }
  return epilogue_memory_fault_of(choice, operation, memory, lent);
}

}  // namespace shardrun::test::fake_cuda
