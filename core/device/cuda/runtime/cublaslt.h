#pragma once

#include <cublasLt.h>

#include <string>
#include <string_view>

namespace shardrun::device::cuda {

/// The functions of cuBLASLt, whose library is opened while the program runs.
struct CublasLt {
  std::string name;  ///< "cuBLASLt 13.1.0"
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtGetStatusName) status_name = nullptr;
  decltype(&cublasLtMatmulDescCreate) operation_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) operation_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) operation_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
};

/// Whether and how this process uses cuBLASLt.
struct FoundCublasLt {
  bool is_used = false;
  bool is_asked_for = false;   ///< a variable asks for it; otherwise our own kernels multiply if it does not start
  bool fuses = true;           ///< a product's epilogue computes the ops after it (products.cpp)
  std::string timed_products;  ///< the file of TimedProducts; empty: products are not timed
  CublasLt functions;
  std::string text;  ///< for people: the library's name, or "own kernels: " and the reason
};

/// Opens the library once. The environment variable SHARDRUN_CUDA_PRODUCTS chooses: `own` for our own kernels,
/// `cublaslt` for the library, `unfused` for the library without epilogues. By default the library is used if it is
/// found. SHARDRUN_CUDA_TIMED_PRODUCTS asks for the library too. Makes no CUDA call. Throws Error{job} as
/// open_library() does, and if products are to be timed without the library.
[[nodiscard]] const FoundCublasLt& find_cublaslt();

}  // namespace shardrun::device::cuda
