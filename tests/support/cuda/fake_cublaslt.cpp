#include "tests/support/cuda/fake_cublaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

namespace fake = shardrun::test::fake_cuda;

struct FakeOperation {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::int32_t transpose_a = CUBLAS_OP_N;
  std::int32_t transpose_b = CUBLAS_OP_N;
  auto operator<=>(const FakeOperation&) const = default;
};

/// A matrix stored column by column, or a batch of them.
struct FakeLayout {
  cudaDataType_t type;
  std::uint64_t rows;
  std::uint64_t columns;
  std::int64_t leading;
  std::int32_t batch = 1;
  std::int64_t batch_stride = 0;
  auto operator<=>(const FakeLayout&) const = default;

  [[nodiscard]] std::size_t element_bytes() const { return type == CUDA_R_16BF ? 2 : 4; }
  [[nodiscard]] std::size_t bytes() const {
    const auto last =
        static_cast<std::size_t>((batch - 1) * batch_stride) + (columns - 1) * static_cast<std::size_t>(leading) + rows;
    return last * element_bytes();
  }
};

struct FakePreference {
  std::uint64_t workspace_bytes = 0;
  std::uint32_t reductions = 7;
  std::array<std::uint32_t, 4> alignments = {256, 256, 256, 256};  ///< of a, b, c and d
  auto operator<=>(const FakePreference&) const = default;
};

struct FakeHandle {};

namespace {

/// All that an algorithm was chosen for.
struct Choice {
  FakeOperation operation;
  std::array<FakeLayout, 4> layouts;
  FakePreference preference;
  auto operator<=>(const Choice&) const = default;

  [[nodiscard]] std::size_t workspace_bytes() const {
    return std::min<std::size_t>(preference.workspace_bytes, layouts[3].rows * layouts[3].columns * 4);
  }
};

std::mutex mutex;
const fake::Lent* lent = nullptr;
fake::CublasLtCounts counts;
std::map<Choice, std::uint64_t> choices;  ///< their numbers
/// By number; the address is that of the choice's kernel.
std::vector<std::unique_ptr<const Choice>>& chosen() {
  static std::vector<std::unique_ptr<const Choice>> all;
  return all;
}

cublasStatus_t refuse(const std::string& why) {
  std::fprintf(stderr, "fake cuBLASLt: %s\n", why.c_str());
  return CUBLAS_STATUS_INVALID_VALUE;
}

std::int64_t number_of(const char* variable, std::int64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

/// Does `act()` unless the function is the one that fails.
template <class Act>
cublasStatus_t with(const char* function, const Act& act) {
  const char* const fails = std::getenv("FAKE_CUBLASLT_FAIL");
  if (fails != nullptr && std::string(fails) == function) {
    return static_cast<cublasStatus_t>(number_of("FAKE_CUBLASLT_STATUS", CUBLAS_STATUS_EXECUTION_FAILED));
  }
  const std::lock_guard lock(mutex);
  return act();
}

template <class Value>
cublasStatus_t take(Value& to, const void* value, std::size_t bytes) {
  if (bytes != sizeof(to)) {
    return refuse("an attribute of " + std::to_string(bytes) + " bytes has " + std::to_string(sizeof(to)));
  }
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

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

struct Arguments {
  const std::byte* a;
  const std::byte* b;
  std::byte* d;
  float alpha;
  float beta;
};

/// The matrix, or its transpose, row by row.
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

/// One sum after the other, in the order of k.
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
        const float before = of.beta == 0 ? 0 : of.beta * element_of(c, to, at);
        set_element(d, to, at, of.alpha * sum + before);
      }
    }
  }
}

/// Nothing: the layouts fit each other.
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
  return "";
}

bool has_unaligned_rows(const FakeLayout& layout) {
  return layout.leading * static_cast<std::int64_t>(layout.element_bytes()) % 16 != 0;
}

bool is_aligned(const void* memory, std::size_t to) { return reinterpret_cast<std::uintptr_t>(memory) % to == 0; }

/// Nothing: the memory is what was promised when the algorithm was chosen.
std::string fault_of(const Choice& choice, const std::array<const void*, 4>& memory, const void* workspace,
                     std::size_t workspace_bytes) {
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const std::string name(1, "abcd"[i]);
    if (!lent->is_on_gpu(memory[i], choice.layouts[i].bytes())) {
      return "the matrix " + name + " is not on the GPU as a whole";
    }
    if (!is_aligned(memory[i], choice.preference.alignments[i])) {
      return "the matrix " + name + " is not aligned as was promised";
    }
  }
  if (memory[2] != memory[3]) {
    return "c is not d";
  }
  if (workspace_bytes < choice.workspace_bytes() || workspace_bytes > choice.preference.workspace_bytes) {
    return "the workspace has " + std::to_string(workspace_bytes) + " bytes, which was not said before";
  }
  if (workspace_bytes > 0 && (!lent->is_on_gpu(workspace, workspace_bytes) || !is_aligned(workspace, 256))) {
    return "the workspace is not on the GPU as a whole, or not aligned to 256 bytes";
  }
  return "";
}

}  // namespace

extern "C" {

void fake_cublaslt_lend(const fake::Lent* of) { lent = of; }
void fake_cublaslt_counts(fake::CublasLtCounts* to) {
  const std::lock_guard lock(mutex);
  *to = counts;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return with("cublasLtCreate", [&] {
    static FakeHandle only;
    *handle = &only;
    return lent == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : CUBLAS_STATUS_SUCCESS;
  });
}
std::size_t cublasLtGetVersion() { return static_cast<std::size_t>(number_of("FAKE_CUBLASLT_VERSION", 130100)); }
const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "a status that the fake does not know";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return with("cublasLtMatmulDescCreate", [&] {
    *operation = new FakeOperation{.compute = compute, .scale = scale};
    return CUBLAS_STATUS_SUCCESS;
  });
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete operation;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  return with("cublasLtMatmulDescSetAttribute", [&] {
    switch (attribute) {
      case CUBLASLT_MATMUL_DESC_TRANSA: return take(operation->transpose_a, value, bytes);
      case CUBLASLT_MATMUL_DESC_TRANSB: return take(operation->transpose_b, value, bytes);
    }
    return refuse("an attribute of an operation is not known");
  });
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t leading) {
  return with("cublasLtMatrixLayoutCreate", [&] {
    *layout = new FakeLayout{.type = type, .rows = rows, .columns = columns, .leading = leading};
    return CUBLAS_STATUS_SUCCESS;
  });
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
  return with("cublasLtMatrixLayoutSetAttribute", [&] {
    switch (attribute) {
      case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return take(layout->batch, value, bytes);
      case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return take(layout->batch_stride, value, bytes);
    }
    return refuse("an attribute of a layout is not known");
  });
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return with("cublasLtMatmulPreferenceCreate", [&] {
    *preference = new FakePreference;
    return CUBLAS_STATUS_SUCCESS;
  });
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  return with("cublasLtMatmulPreferenceSetAttribute", [&] {
    auto& alignments = preference->alignments;
    switch (attribute) {
      case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return take(preference->workspace_bytes, value, bytes);
      case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return take(preference->reductions, value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return take(alignments[0], value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return take(alignments[1], value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return take(alignments[2], value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return take(alignments[3], value, bytes);
    }
    return refuse("an attribute of a preference is not known");
  });
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  return with("cublasLtMatmulAlgoGetHeuristic", [&] {
    *found = 0;
    ++counts.choices;
    const Choice choice = {*operation, {*a, *b, *c, *d}, *preference};
    if (const std::string wrong = mismatch_of(choice); !wrong.empty()) {
      return refuse(wrong);
    }
    if (std::getenv("FAKE_CUBLASLT_NONE") != nullptr || asked < 1) {
      return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    const auto [entry, is_new] = choices.try_emplace(choice, chosen().size());
    if (is_new) {
      chosen().push_back(std::make_unique<const Choice>(choice));
    }
    results[0] = {.algo = {.data = {entry->second}},
                  .workspaceSize = choice.workspace_bytes(),
                  .state = CUBLAS_STATUS_SUCCESS,
                  .wavesCount = 1,
                  .reserved = {}};
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  return with("cublasLtMatmul", [&] {
    if (algorithm == nullptr || algorithm->data[0] >= chosen().size()) {
      return refuse("there is no such algorithm");
    }
    const Choice& choice = *chosen()[algorithm->data[0]];
    if (*operation != choice.operation || *a_layout != choice.layouts[0] || *b_layout != choice.layouts[1] ||
        *c_layout != choice.layouts[2] || *d_layout != choice.layouts[3]) {
      return refuse("the algorithm was chosen for another product");
    }
    if (const std::string wrong = fault_of(choice, {a, b, c, d}, workspace, workspace_bytes); !wrong.empty()) {
      return refuse(wrong);
    }
    if (lent->captures(stream, &choice)) {
      return CUBLAS_STATUS_SUCCESS;
    }
    ++counts.products;
    counts.unaligned += std::ranges::any_of(choice.layouts, has_unaligned_rows) ? 1 : 0;
    const Arguments arguments = {.a = static_cast<const std::byte*>(a),
                                 .b = static_cast<const std::byte*>(b),
                                 .d = static_cast<std::byte*>(d),
                                 .alpha = *static_cast<const float*>(alpha),
                                 .beta = *static_cast<const float*>(beta)};
    lent->enqueue(stream, &choice, [&choice, arguments, workspace, workspace_bytes, turn = counts.products] {
      if (workspace_bytes > 0) {
        std::memset(workspace, static_cast<int>(turn % 251), workspace_bytes);
      }
      multiply(choice, arguments);
    });
    return CUBLAS_STATUS_SUCCESS;
  });
}
}
