#include "core/device/cuda/runtime/library_product.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/standard_error.h"
#include "core/device/cuda/runtime/library_op.h"

namespace shardrun::device::cuda {
namespace {

using Alignments = std::array<std::uint32_t, 3>;

/// The largest power of two that divides the addresses of all matrices of a batch.
std::uint32_t alignment_of(const void* data, std::int64_t batch, std::int64_t batch_stride, graph::DType dtype) {
  constexpr std::uint64_t most = 256;  // more is no use to the library
  const std::uint64_t bytes =
      batch > 1 ? static_cast<std::uint64_t>(batch_stride) * graph::element_bytes(dtype) : std::uint64_t{0};
  const std::uint64_t bits = most | reinterpret_cast<std::uintptr_t>(data) | bytes;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

cudaDataType_t type_of(graph::DType dtype) { return dtype == graph::DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

std::string text_of(const ProductStep& step) {
  const Product& p = step.product;
  const std::string batch = step.batch == 1 ? "" : fmt::format(", {} times", step.batch);
  return fmt::format("{}[{}, {}] {}[{}, {}] -> {}{}", to_string(p.a.dtype), p.m, p.k, to_string(p.b.dtype), p.k, p.n,
                     to_string(p.c.dtype), batch);
}

class CublasLtProduct final : public LibraryProduct {
 public:
  CublasLtProduct(const CublasLt& library, cublasLtHandle_t handle, const ProductStep& step,
                  const Alignments& alignments, std::size_t workspace_bytes)
      : library_(library), handle_(handle), step_(step) {
    const Product& p = step.product;
    // The library's matrices are stored column by column, so ours are transposed: it makes c' = b' a'.
    const cublasOperation_t of_b = p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t of_a = p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulDesc_t operation = nullptr;
    check(library.operation_create(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    operation_ = {operation, library.operation_destroy};
    set(library.operation_set, operation, CUBLASLT_MATMUL_DESC_TRANSA, of_b);
    set(library.operation_set, operation, CUBLASLT_MATMUL_DESC_TRANSB, of_a);
    layouts_[0] = layout(p.a, 0, p.m, p.k);
    layouts_[1] = layout(p.b, 1, p.k, p.n);
    layouts_[2] = layout(p.c, 2, p.m, p.n);
    choose(alignments, workspace_bytes);
  }

  /// Whether the library has an algorithm.
  [[nodiscard]] bool is_possible() const noexcept { return is_possible_; }

  void run(const ProductMemory& memory, bool accumulate, cudaStream_t stream) const override {
    const float one = 1;
    const float beta = accumulate ? 1 : 0;
    check(library_.multiply(handle_, operation_.get(), &one, memory.b, layouts_[1].get(), memory.a, layouts_[0].get(),
                            &beta, memory.c, layouts_[2].get(), memory.c, layouts_[2].get(), &algorithm_,
                            memory.workspace.data(), memory.workspace.size(), stream),
          "cublasLtMatmul");
  }

 private:
  template <class Opaque>
  using Owned = std::unique_ptr<Opaque, cublasStatus_t (*)(Opaque*)>;
  using Operation = Owned<std::remove_pointer_t<cublasLtMatmulDesc_t>>;
  using Layout = Owned<std::remove_pointer_t<cublasLtMatrixLayout_t>>;
  using Preference = Owned<std::remove_pointer_t<cublasLtMatmulPreference_t>>;

  void check(cublasStatus_t status, const char* call) const {
    if (status != CUBLAS_STATUS_SUCCESS) {
      throw Error(ErrorCode::internal,
                  fmt::format("multiplying {} by {}: {} returned {} (SHARDRUN_CUDA_PRODUCTS=own multiplies without it)",
                              text_of(step_), library_.name, call, library_.status_name(status)));
    }
  }

  template <class Set, class Object, class Attribute, class Value>
  void set(Set set, Object object, Attribute attribute, const Value& value) const {
    check(set(object, attribute, &value, sizeof(value)), "setting an attribute");
  }

  [[nodiscard]] Layout layout(const Operand& operand, std::size_t number, std::int64_t rows, std::int64_t columns) {
    const std::int64_t height = operand.transposed ? columns : rows;
    const std::int64_t width = operand.transposed ? rows : columns;
    cublasLtMatrixLayout_t made = nullptr;
    check(library_.layout_create(&made, type_of(operand.dtype), static_cast<std::uint64_t>(width),
                                 static_cast<std::uint64_t>(height), std::max(operand.stride, width)),
          "cublasLtMatrixLayoutCreate");
    Layout owned{made, library_.layout_destroy};
    if (step_.batch > 1) {
      set(library_.layout_set, made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(step_.batch));
      set(library_.layout_set, made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, step_.batch_strides[number]);
    }
    return owned;
  }

  void choose(const Alignments& alignments, std::size_t workspace_bytes) {
    cublasLtMatmulPreference_t made = nullptr;
    check(library_.preference_create(&made), "cublasLtMatmulPreferenceCreate");
    const Preference preference{made, library_.preference_destroy};
    // Parts of k are added up in float32 and in a fixed order: the bits are always the same.
    const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    set(library_.preference_set, made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    set(library_.preference_set, made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
        static_cast<std::uint64_t>(workspace_bytes));
    set(library_.preference_set, made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments[1]);
    set(library_.preference_set, made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments[0]);
    set(library_.preference_set, made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments[2]);
    set(library_.preference_set, made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments[2]);
    std::array<cublasLtMatmulHeuristicResult_t, 8> results = {};
    int count = 0;
    const cublasStatus_t status =
        library_.heuristic(handle_, operation_.get(), layouts_[1].get(), layouts_[0].get(), layouts_[2].get(),
                           layouts_[2].get(), made, static_cast<int>(results.size()), results.data(), &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
      return;
    }
    check(status, "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < count && !is_possible_; ++i) {
      const cublasLtMatmulHeuristicResult_t& result = results[static_cast<std::size_t>(i)];
      if (result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_bytes) {
        algorithm_ = result.algo;
        is_possible_ = true;
      }
    }
  }

  const CublasLt& library_;
  cublasLtHandle_t handle_;
  ProductStep step_;
  Operation operation_{nullptr, nullptr};
  std::array<Layout, 3> layouts_ = {Layout{nullptr, nullptr}, Layout{nullptr, nullptr}, Layout{nullptr, nullptr}};
  cublasLtMatmulAlgo_t algorithm_ = {};
  bool is_possible_ = false;
};

std::vector<std::int64_t> key_of(const ProductStep& step, const Alignments& alignments, std::size_t workspace_bytes) {
  const Product& p = step.product;
  std::vector<std::int64_t> key = {p.m, p.n, p.k, step.batch, static_cast<std::int64_t>(workspace_bytes)};
  std::size_t t = 0;
  for (const Operand* operand : {&p.a, &p.b, &p.c}) {
    key.insert(key.end(), {static_cast<std::int64_t>(operand->dtype), operand->stride, operand->transposed ? 1 : 0,
                           step.batch_strides[t], alignments[t]});
    ++t;
  }
  return key;
}

}  // namespace

LibraryProducts::LibraryProducts(const FoundCublasLt& found, const Gpu& gpu) : found_(found), gpu_(gpu) {
  const CublasLt& library = found.functions;
  gpu.use();
  // Never destroyed: when the process ends, CUDA may be gone before.
  if (const cublasStatus_t status = library.create(&handle_); status != CUBLAS_STATUS_SUCCESS) {
    throw Error(
        ErrorCode::internal,
        fmt::format("starting {}: cublasLtCreate returned {} (SHARDRUN_CUDA_PRODUCTS=own multiplies without it)",
                    library.name, library.status_name(status)));
  }
}

std::shared_ptr<const LibraryProduct> LibraryProducts::find(const ProductStep& step, const ProductMemory& memory) {
  const Product& p = step.product;
  const Alignments alignments = {alignment_of(memory.a, step.batch, step.batch_strides[0], p.a.dtype),
                                 alignment_of(memory.b, step.batch, step.batch_strides[1], p.b.dtype),
                                 alignment_of(memory.c, step.batch, step.batch_strides[2], p.c.dtype)};
  std::vector<std::int64_t> key = key_of(step, alignments, memory.workspace.size());
  const std::lock_guard lock(mutex_);
  if (const auto known = known_.find(key); known != known_.end()) {
    return known->second;
  }
  gpu_.use();
  auto made =
      std::make_shared<const CublasLtProduct>(found_.functions, handle_, step, alignments, memory.workspace.size());
  std::shared_ptr<const LibraryProduct> found = made->is_possible() ? made : nullptr;
  if (found != nullptr) {
    try {
      load_kernels(gpu_, [&](cudaStream_t stream) { found->run(memory, false, stream); });
    } catch (const Error& error) {
      write_to_standard_error(
          fmt::format("shardrun: loading the kernels of {} failed, so our own kernel multiplies them: {}\n",
                      text_of(step), error.message()));
      found = nullptr;
    }
  }
  return known_[std::move(key)] = found;
}

}  // namespace shardrun::device::cuda
