// The installed cuBLASLt, if there is one: the functions that the device `cuda` finds in it, and the attributes that it
// sets. No product is computed, because that needs a GPU.

#include <cstdint>
#include <string>

#include "core/device/cuda/runtime/cublaslt.h"
#include "tests/support/catch.h"

using namespace shardrun::device::cuda;

TEST_CASE("the installed cuBLASLt takes the attributes that products set", "[unit]") {
  const FoundCublasLt& found = find_cublaslt();
  if (!found.is_used) {
    WARN(found.text);
    return;
  }
  const CublasLt& library = found.functions;
  CHECK(library.status_name(CUBLAS_STATUS_NOT_SUPPORTED) == std::string("CUBLAS_STATUS_NOT_SUPPORTED"));

  cublasLtMatmulDesc_t operation = nullptr;
  REQUIRE(library.operation_create(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  for (const auto attribute : {CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB}) {
    CHECK(library.operation_set(operation, attribute, &transposed, sizeof(transposed)) == CUBLAS_STATUS_SUCCESS);
    CHECK(library.operation_set(operation, attribute, &transposed, 2) == CUBLAS_STATUS_INVALID_VALUE);
  }
  const std::uint32_t epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  CHECK(library.operation_set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)) ==
        CUBLAS_STATUS_SUCCESS);
  CHECK(library.operation_set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, 8) == CUBLAS_STATUS_INVALID_VALUE);
  void* const address = &operation;
  for (const auto attribute : {CUBLASLT_MATMUL_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER}) {
    CHECK(library.operation_set(operation, attribute, &address, sizeof(address)) == CUBLAS_STATUS_SUCCESS);
    CHECK(library.operation_set(operation, attribute, &address, 4) == CUBLAS_STATUS_INVALID_VALUE);
  }
  const std::int64_t columns = 3072;
  CHECK(library.operation_set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &columns, sizeof(columns)) ==
        CUBLAS_STATUS_SUCCESS);
  CHECK(library.operation_set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &columns, 4) ==
        CUBLAS_STATUS_INVALID_VALUE);
  CHECK(library.operation_destroy(operation) == CUBLAS_STATUS_SUCCESS);

  for (const cudaDataType_t type : {CUDA_R_16BF, CUDA_R_32F}) {
    cublasLtMatrixLayout_t layout = nullptr;
    REQUIRE(library.layout_create(&layout, type, 50257, 16384, 50304) == CUBLAS_STATUS_SUCCESS);
    const std::int32_t count = 12;
    const std::int64_t stride = 0;
    CHECK(library.layout_set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)) ==
          CUBLAS_STATUS_SUCCESS);
    CHECK(library.layout_set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)) ==
          CUBLAS_STATUS_SUCCESS);
    CHECK(library.layout_destroy(layout) == CUBLAS_STATUS_SUCCESS);
  }

  cublasLtMatmulPreference_t preference = nullptr;
  REQUIRE(library.preference_create(&preference) == CUBLAS_STATUS_SUCCESS);
  const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const std::uint64_t workspace = std::uint64_t{32} << 20;
  CHECK(library.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                               sizeof(reductions)) == CUBLAS_STATUS_SUCCESS);
  CHECK(library.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)) ==
        CUBLAS_STATUS_SUCCESS);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    for (const std::uint32_t alignment : {2U, 64U, 256U}) {
      CHECK(library.preference_set(preference, attribute, &alignment, sizeof(alignment)) == CUBLAS_STATUS_SUCCESS);
    }
  }
  CHECK(library.preference_destroy(preference) == CUBLAS_STATUS_SUCCESS);
}
