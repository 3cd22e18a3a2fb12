#include "core/device/cuda/runtime/library_product.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/standard_error.h"
#include "core/device/cuda/runtime/library_op.h"
#include "core/device/cuda/runtime/trials.h"

namespace shardrun::device::cuda {
namespace {

using Gelu = Epilogue::Gelu;

/// The alignments of a, b, c, and of the epilogue's matrix, vector and operand.
using Alignments = std::array<std::uint32_t, 6>;

/// The largest power of two, up to 256, that divides the addresses of all matrices of a batch.
std::uint32_t alignment_of(const void* data, std::int64_t batch, std::int64_t batch_stride, graph::DType dtype) {
  constexpr std::uint64_t most = 256;  // the library does not profit from more
  const std::uint64_t bytes =
      batch > 1 ? static_cast<std::uint64_t>(batch_stride) * graph::element_bytes(dtype) : std::uint64_t{0};
  const std::uint64_t bits = most | reinterpret_cast<std::uintptr_t>(data) | bytes;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

Alignments alignments_of(const ProductStep& step, const ProductMemory& memory) {
  const auto of = [&](const void* data, std::size_t number, const Operand& operand) {
    return alignment_of(data, step.batch, step.batch_strides[number], operand.dtype);
  };
  const Product& p = step.product;
  const Epilogue& epilogue = memory.epilogue;
  const void* const added = epilogue.added == nullptr ? memory.c : epilogue.added;
  return {of(memory.a, 0, p.a), of(memory.b, 1, p.b),      of(memory.c, 2, p.c),
          of(added, 2, p.c),    of(epilogue.bias, 2, p.c), of(epilogue.operand, 2, p.c)};
}

std::uint32_t name_of(const Epilogue& epilogue) {
  const bool has_bias = epilogue.bias != nullptr;
  switch (epilogue.gelu) {
    case Gelu::none: return has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case Gelu::backward: return CUBLASLT_EPILOGUE_DGELU;
    case Gelu::forward: break;
  }
  if (epilogue.operand == nullptr) {
    return has_bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  }
  return has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
}

cudaDataType_t type_of(graph::DType dtype) { return dtype == graph::DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

std::string text_of(const ProductStep& step, const Epilogue& epilogue) {
  const Product& p = step.product;
  const std::string batch = step.batch == 1 ? "" : fmt::format(", {} times", step.batch);
  constexpr std::array<const char*, 3> gelus = {"", ", GELU", ", gradient of GELU"};
  return fmt::format("{}[{}, {}] {}[{}, {}] -> {}{}{}{}{}", to_string(p.a.dtype), p.m, p.k, to_string(p.b.dtype), p.k,
                     p.n, to_string(p.c.dtype), batch, epilogue.added == nullptr ? "" : ", plus a matrix",
                     epilogue.bias == nullptr ? "" : ", plus a bias", gelus[static_cast<std::size_t>(epilogue.gelu)]);
}

class CublasLtProduct final : public LibraryProduct {
 public:
  /// REQUIRES: use() chooses an algorithm before it runs.
  CublasLtProduct(const CublasLt& library, cublasLtHandle_t handle, const ProductStep& step, const Epilogue& epilogue)
      : library_(library), handle_(handle), step_(step), epilogue_(epilogue) {
    const Product& p = step.product;
    // The library's matrices are column-major, so each of ours appears transposed: it computes c' = b' a'.
    const cublasOperation_t of_b = p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t of_a = p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulDesc_t operation = nullptr;
    check(library.operation_create(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    operation_ = {operation, library.operation_destroy};
    set(library.operation_set, operation, CUBLASLT_MATMUL_DESC_TRANSA, of_b);
    set(library.operation_set, operation, CUBLASLT_MATMUL_DESC_TRANSB, of_a);
    set_epilogue(operation);
    layouts_[0] = layout(p.a, 0, p.m, p.k);
    layouts_[1] = layout(p.b, 1, p.k, p.n);
    layouts_[2] = layout(p.c, 2, p.m, p.n);
  }

  /// The algorithms that the library proposes, beginning with the one that it expects to be the fastest.
  [[nodiscard]] std::vector<cublasLtMatmulAlgo_t> proposals(const Alignments& alignments,
                                                            std::size_t workspace_bytes) const {
    constexpr std::size_t most = 16;
    cublasLtMatmulPreference_t made = nullptr;
    check(library_.preference_create(&made), "cublasLtMatmulPreferenceCreate");
    const Preference preference{made, library_.preference_destroy};
    // Algorithms must sum parts of k in float32 and in a fixed order, so that the bits are always the same.
    const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    set(library_.preference_set, made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    set(library_.preference_set, made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
        static_cast<std::uint64_t>(workspace_bytes));
    set(library_.preference_set, made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments[1]);
    set(library_.preference_set, made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments[0]);
    set(library_.preference_set, made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments[3]);
    set(library_.preference_set, made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments[2]);
    std::vector<cublasLtMatmulHeuristicResult_t> results(most);
    int count = 0;
    const cublasStatus_t status =
        library_.heuristic(handle_, operation_.get(), layouts_[1].get(), layouts_[0].get(), layouts_[2].get(),
                           layouts_[2].get(), made, static_cast<int>(results.size()), results.data(), &count);
    if (status != CUBLAS_STATUS_SUCCESS) {
      if (status != CUBLAS_STATUS_NOT_SUPPORTED) {
        write_to_standard_error(
            fmt::format("shardrun: {} has no algorithm for {}: cublasLtMatmulAlgoGetHeuristic returned {}\n",
                        library_.name, text_of(step_, epilogue_), library_.status_name(status)));
      }
      return {};
    }
    std::vector<cublasLtMatmulAlgo_t> found;
    for (const cublasLtMatmulHeuristicResult_t& result : std::span(results).first(static_cast<std::size_t>(count))) {
      if (result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_bytes) {
        found.push_back(result.algo);
      }
    }
    return found;
  }

  void use(const cublasLtMatmulAlgo_t& algorithm) { algorithm_ = algorithm; }

  void run(const ProductMemory& memory, bool accumulate, cudaStream_t stream) const override {
    const float one = 1;
    const void* const added = epilogue_.added == nullptr ? memory.c : memory.epilogue.added;
    const float beta = accumulate || epilogue_.added != nullptr ? 1 : 0;
    check(library_.multiply(handle_, operation_.get(), &one, memory.b, layouts_[1].get(), memory.a, layouts_[0].get(),
                            &beta, added, layouts_[2].get(), memory.c, layouts_[2].get(), &algorithm_,
                            memory.workspace.data(), memory.workspace.size(), stream),
          "cublasLtMatmul");
  }

  [[nodiscard]] std::shared_ptr<const LibraryProduct> with(const Epilogue& epilogue) const override {
    auto made = std::make_shared<CublasLtProduct>(library_, handle_, step_, epilogue);
    made->algorithm_ = algorithm_;
    return made;
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
                  fmt::format("multiplying {} by {}: {} returned {} (SHARDRUN_CUDA_PRODUCTS={})",
                              text_of(step_, epilogue_), library_.name, call, library_.status_name(status),
                              epilogue_.is_empty() ? "own multiplies without it" : "unfused runs its ops one by one"));
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

  /// Stores the epilogue's vector and operand in the operation. The matrix that is added is passed to each run.
  void set_epilogue(cublasLtMatmulDesc_t operation) const {
    if (const std::uint32_t name = name_of(epilogue_); name != CUBLASLT_EPILOGUE_DEFAULT) {
      set(library_.operation_set, operation, CUBLASLT_MATMUL_DESC_EPILOGUE, name);
    }
    if (epilogue_.bias != nullptr) {
      set(library_.operation_set, operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, epilogue_.bias);
    }
    if (epilogue_.operand != nullptr) {
      set(library_.operation_set, operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, epilogue_.operand);
      set(library_.operation_set, operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, step_.product.n);
    }
  }

  const CublasLt& library_;
  cublasLtHandle_t handle_;
  ProductStep step_;
  Epilogue epilogue_;
  Operation operation_{nullptr, nullptr};
  std::array<Layout, 3> layouts_ = {Layout{nullptr, nullptr}, Layout{nullptr, nullptr}, Layout{nullptr, nullptr}};
  cublasLtMatmulAlgo_t algorithm_ = {};
};

std::vector<std::int64_t> key_of(const ProductStep& step, const ProductMemory& memory) {
  const Product& p = step.product;
  std::vector<std::int64_t> key = {p.m,
                                   p.n,
                                   p.k,
                                   step.batch,
                                   static_cast<std::int64_t>(memory.workspace.size()),
                                   name_of(memory.epilogue),
                                   memory.epilogue.added == nullptr ? 0 : 1};
  std::size_t t = 0;
  for (const Operand* operand : {&p.a, &p.b, &p.c}) {
    key.insert(key.end(), {static_cast<std::int64_t>(operand->dtype), operand->stride, operand->transposed ? 1 : 0,
                           step.batch_strides[t]});
    ++t;
  }
  const Alignments alignments = alignments_of(step, memory);
  key.insert(key.end(), alignments.begin(), alignments.end());
  return key;
}

/// Memory for timing trials of a product: buffers as large and as aligned as those of the product itself.
class Trial {
 public:
  /// Throws Error{io} if the GPU does not have so much memory.
  Trial(const Gpu& gpu, const ProductStep& step, const ProductMemory& like)
      : buffers_(buffers_of(step, like)), owned_(gpu, buffers_), memory_(like) {
    const auto [a, b, c, added, bias, operand, workspace] = buffers_;
    memory_.a = a.data;
    memory_.b = b.data;
    memory_.c = c.data;
    memory_.epilogue.added = added.data;
    memory_.epilogue.bias = bias.data;
    memory_.epilogue.operand = operand.data;
    memory_.workspace = {workspace.data, workspace.bytes};
  }

  [[nodiscard]] const ProductMemory& memory() const noexcept { return memory_; }

 private:
  using Buffers = std::array<TrialBuffer, 7>;

  static Buffers buffers_of(const ProductStep& step, const ProductMemory& like) {
    const Product& p = step.product;
    const auto bytes_of = [&](const Operand& operand, std::size_t number, std::int64_t rows, std::int64_t columns) {
      const auto [height, width] = operand.transposed ? std::pair{columns, rows} : std::pair{rows, columns};
      const std::int64_t last = (step.batch - 1) * step.batch_strides[number] + (height - 1) * operand.stride + width;
      return static_cast<std::size_t>(last) * graph::element_bytes(operand.dtype);
    };
    const std::size_t of_c = bytes_of(p.c, 2, p.m, p.n);
    const Epilogue& epilogue = like.epilogue;
    Buffers made = {};
    made[0].bytes = bytes_of(p.a, 0, p.m, p.k);
    made[1].bytes = bytes_of(p.b, 1, p.k, p.n);
    made[2].bytes = of_c;
    made[3].bytes = epilogue.added == nullptr ? 0 : of_c;
    made[4].bytes = epilogue.bias == nullptr ? 0 : static_cast<std::size_t>(p.n) * graph::element_bytes(p.c.dtype);
    made[5].bytes = epilogue.operand == nullptr ? 0 : of_c;
    made[6].bytes = like.workspace.size();
    const Alignments alignments = alignments_of(step, like);
    for (std::size_t i = 0; i < alignments.size(); ++i) {
      made[i].alignment = alignments[i];
    }
    return made;
  }

  Buffers buffers_;
  TrialMemory owned_;
  ProductMemory memory_;
};

}  // namespace

LibraryProducts::LibraryProducts(const FoundCublasLt& found, const Gpu& gpu) : found_(found), gpu_(gpu) {
  const CublasLt& library = found.functions;
  if (!found.timed_products.empty()) {
    timed_.emplace(found.timed_products, library.name, gpu.name());
  }
  gpu.use();
  // This handle is never destroyed: at the end of the process, CUDA may already be gone.
  if (const cublasStatus_t status = library.create(&handle_); status != CUBLAS_STATUS_SUCCESS) {
    throw Error(
        ErrorCode::internal,
        fmt::format("starting {}: cublasLtCreate returned {} (SHARDRUN_CUDA_PRODUCTS=own multiplies without it)",
                    library.name, library.status_name(status)));
  }
}

std::shared_ptr<const LibraryProduct> LibraryProducts::make(const ProductStep& step, const ProductMemory& memory) {
  const auto make_for = [&](const ProductMemory& of) {
    return std::make_shared<CublasLtProduct>(found_.functions, handle_, step, of.epilogue);
  };
  const auto load = [&](const LibraryProduct& product, const ProductMemory& of) {
    load_kernels(gpu_, [&](cudaStream_t stream) { product.run(of, false, stream); });
  };
  auto made = make_for(memory);
  const std::vector<cublasLtMatmulAlgo_t> proposals =
      made->proposals(alignments_of(step, memory), memory.workspace.size());
  if (proposals.empty()) {
    return nullptr;
  }
  const auto time = [&] {
    const Trial trial(gpu_, step, memory);
    std::vector<std::function<void(cudaStream_t)>> runs;
    for (const cublasLtMatmulAlgo_t& algorithm : proposals) {
      auto tried = make_for(trial.memory());
      tried->use(algorithm);
      load(*tried, trial.memory());
      runs.emplace_back([&trial, tried](cudaStream_t stream) { tried->run(trial.memory(), false, stream); });
    }
    return time_in_turns(gpu_, runs);
  };
  const std::string text = text_of(step, memory.epilogue);
  std::size_t chosen = 0;
  if (timed_ && proposals.size() > 1) {
    try {
      chosen = timed_->find(key_of(step, memory), proposals.size(), text, time);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::job) {
        throw;  // the file of timed products is invalid
      }
      write_to_standard_error(
          fmt::format("shardrun: {} is not timed, and has the algorithm that the library proposes first: {}\n", text,
                      error.message()));
    }
  }
  made->use(proposals[chosen]);
  try {
    load(*made, memory);
  } catch (const Error& error) {
    write_to_standard_error(fmt::format(
        "shardrun: loading the kernels of {} failed, so {}: {}\n", text,
        memory.epilogue.is_empty() ? "our own kernel multiplies them" : "its ops run one by one", error.message()));
    return nullptr;
  }
  return made;
}

std::shared_ptr<const LibraryProduct> LibraryProducts::find(const ProductStep& step, const ProductMemory& memory) {
  const Epilogue& epilogue = memory.epilogue;
  std::vector<std::int64_t> key = key_of(step, memory);
  const std::lock_guard lock(mutex_);
  if (const auto known = known_.find(key); known != known_.end()) {
    const bool is_shared = known->second == nullptr || (epilogue.bias == nullptr && epilogue.operand == nullptr);
    return is_shared ? known->second : known->second->with(epilogue);
  }
  gpu_.use();
  std::shared_ptr<const LibraryProduct> found;
  try {
    found = make(step, memory);
  } catch (const Error& error) {
    if (epilogue.is_empty()) {
      throw;
    }
    write_to_standard_error(fmt::format("shardrun: {}; its ops run one by one\n", error.message()));
  }
  return known_[std::move(key)] = found;
}

}  // namespace shardrun::device::cuda
