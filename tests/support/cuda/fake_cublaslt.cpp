#include "tests/support/cuda/fake_cublaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cuda/fake_cublaslt_product.h"

namespace fake = shardrun::test::fake_cuda;

struct FakeHandle {};

namespace {

std::mutex mutex;
const fake::Lent* lent = nullptr;
fake::CublasLtCounts counts;
/// When the process ends, appends the number of fused products to the file FAKE_CUBLASLT_FUSED.
struct Said {
  ~Said() {
    if (const char* const file = std::getenv("FAKE_CUBLASLT_FUSED"); file != nullptr) {
      std::ofstream(file, std::ios::app) << std::to_string(counts.fused) + "\n" << std::flush;
    }
  }
} said;
std::map<fake::Choice, std::uint64_t> choices;  ///< the number of each choice
/// All choices, by number. The address of a choice also serves as its kernel's.
std::vector<std::unique_ptr<const fake::Choice>>& chosen() {
  static std::vector<std::unique_ptr<const fake::Choice>> all;
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

/// Calls `act()`, unless FAKE_CUBLASLT_FAIL names this function.
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
      case CUBLASLT_MATMUL_DESC_EPILOGUE: return take(operation->epilogue, value, bytes);
      case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return take(operation->bias, value, bytes);
      case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return take(operation->aux, value, bytes);
      case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return take(operation->aux_leading, value, bytes);
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
    const fake::Choice choice = {operation->kind(), {*a, *b, *c, *d}, *preference};
    if (const std::string wrong = fake::mismatch_of(choice); !wrong.empty()) {
      return refuse(wrong);
    }
    if (std::getenv("FAKE_CUBLASLT_NONE") != nullptr || asked < 1 ||
        (static_cast<std::uint32_t>(number_of("FAKE_CUBLASLT_WITHOUT", 0)) & operation->epilogue) != 0) {
      return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    const auto [entry, is_new] = choices.try_emplace(choice, chosen().size());
    if (is_new) {
      chosen().push_back(std::make_unique<const fake::Choice>(choice));
    }
    *found = static_cast<int>(std::min<std::int64_t>(asked, number_of("FAKE_CUBLASLT_PROPOSALS", 1)));
    for (int i = 0; i < *found; ++i) {
      results[i] = {.algo = {.data = {entry->second, static_cast<std::uint64_t>(i)}},
                    .workspaceSize = choice.workspace_bytes(),
                    .state = CUBLAS_STATUS_SUCCESS,
                    .wavesCount = 1,
                    .reserved = {}};
    }
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
    const fake::Choice& choice = *chosen()[algorithm->data[0]];
    if (operation->kind() != choice.operation || *a_layout != choice.layouts[0] || *b_layout != choice.layouts[1] ||
        *c_layout != choice.layouts[2] || *d_layout != choice.layouts[3]) {
      return refuse("the algorithm was chosen for another product");
    }
    if (const std::string wrong = fake::fault_of(choice, *operation, {{a, b, c, d}, workspace, workspace_bytes}, *lent);
        !wrong.empty()) {
      return refuse(wrong);
    }
    if (lent->captures(stream, &choice)) {
      return CUBLAS_STATUS_SUCCESS;
    }
    ++counts.products;
    counts.unaligned += std::ranges::any_of(choice.layouts, fake::has_unaligned_rows) ? 1 : 0;
    counts.second += algorithm->data[1] == 1 ? 1 : 0;
    counts.fused += operation->epilogue != CUBLASLT_EPILOGUE_DEFAULT || c != d ? 1 : 0;
    const fake::Arguments arguments = {.a = static_cast<const std::byte*>(a),
                                       .b = static_cast<const std::byte*>(b),
                                       .c = static_cast<const std::byte*>(c),
                                       .d = static_cast<std::byte*>(d),
                                       .bias = operation->bias,
                                       .aux = operation->aux,
                                       .alpha = *static_cast<const float*>(alpha),
                                       .beta = *static_cast<const float*>(beta)};
    const bool is_slow = std::getenv("FAKE_CUBLASLT_PROPOSALS") != nullptr && algorithm->data[1] != 1;
    lent->enqueue(stream, &choice, [&choice, arguments, workspace, workspace_bytes, is_slow, turn = counts.products] {
      if (is_slow) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      if (workspace_bytes > 0) {
        std::memset(workspace, static_cast<int>(turn % 251), workspace_bytes);
      }
      fake::multiply(choice, arguments);
    });
    return CUBLAS_STATUS_SUCCESS;
  });
}
}
