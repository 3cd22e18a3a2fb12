#pragma once

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/support/cuda/fake_cublaslt.h"

/// The products of the fake cuBLASLt: what they compute, and which are refused.

struct FakeOperation {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::int32_t transpose_a = CUBLAS_OP_N;
  std::int32_t transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const std::byte* bias = nullptr;
  std::byte* aux = nullptr;
  std::int64_t aux_leading = 0;
  auto operator<=>(const FakeOperation&) const = default;

  [[nodiscard]] bool has_bias() const { return (epilogue & 4U) != 0; }
  [[nodiscard]] bool has_gelu() const { return (epilogue & 32U) != 0; }
  [[nodiscard]] bool has_gelu_gradient() const { return (epilogue & 64U) != 0; }
  [[nodiscard]] bool has_aux() const { return (epilogue & 128U) != 0; }
  /// The operation with its addresses replaced by their alignments, which is all that the choice of an algorithm uses.
  [[nodiscard]] FakeOperation kind() const {
    FakeOperation made = *this;
    const auto alignment = [](auto* address) {
      const std::uintptr_t bits = 256U | reinterpret_cast<std::uintptr_t>(address);
      return reinterpret_cast<decltype(address)>(address == nullptr ? 0 : bits & (~bits + 1));
    };
    made.bias = alignment(bias);
    made.aux = alignment(aux);
    return made;
  }
};

/// A column-major matrix, or a batch of them.
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
  std::array<std::uint32_t, 4> alignments = {256, 256, 256, 256};  ///< alignments of a, b, c and d, in bytes
  auto operator<=>(const FakePreference&) const = default;
};

namespace shardrun::test::fake_cuda {

/// All that determines the choice of an algorithm. Its operation is a FakeOperation::kind(), without addresses.
struct Choice {
  FakeOperation operation;
  std::array<FakeLayout, 4> layouts;
  FakePreference preference;
  auto operator<=>(const Choice&) const = default;

  [[nodiscard]] std::size_t workspace_bytes() const {
    return std::min<std::size_t>(preference.workspace_bytes, layouts[3].rows * layouts[3].columns * 4);
  }
};

/// The operands of a product.
struct Arguments {
  const std::byte* a;
  const std::byte* b;
  const std::byte* c;
  std::byte* d;
  const std::byte* bias;
  std::byte* aux;
  float alpha;
  float beta;
};

/// Why the layouts and the operation do not fit each other; "" if they do.
[[nodiscard]] std::string mismatch_of(const Choice& choice);

/// The memory of a product: its matrices a, b, c and d, and its workspace.
struct Memories {
  std::array<const void*, 4> matrices;
  const void* workspace;
  std::size_t workspace_bytes;
};

/// Why the memory differs from what was promised when the algorithm was chosen; "" if it does not.
[[nodiscard]] std::string fault_of(const Choice& choice, const FakeOperation& operation, const Memories& memories,
                                   const Lent& lent);

[[nodiscard]] bool has_unaligned_rows(const FakeLayout& layout);

/// Computes a product. Each element is summed in the order of k.
void multiply(const Choice& choice, const Arguments& of);

}  // namespace shardrun::test::fake_cuda
