#pragma once

#include <cublasLt.h>

#include <string>
#include <string_view>

namespace shardrun::device::cuda {

/// The functions of cuBLASLt, in a library that is opened while the program runs.
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

/// Whether this process multiplies by cuBLASLt.
struct FoundCublasLt {
  bool is_used = false;
  bool is_asked_for = false;   ///< by the variable; if not, our own kernels multiply where it does not start
  bool fuses = true;           ///< epilogues of products do what ops after them do (products.cpp)
  std::string timed_products;  ///< the file of TimedProducts; empty: nothing is timed
  CublasLt functions;
  std::string text;  ///< for people: the library's name, or "own kernels: " and why
};

/// Opens the library once. The variable SHARDRUN_CUDA_PRODUCTS chooses: `own` for our own kernels, `cublaslt` for the
/// library, `unfused` for the library without epilogues; by default the library if it is found.
/// SHARDRUN_CUDA_TIMED_PRODUCTS asks for the library too. Calls no CUDA. Throws Error{job} as open_library(), and if
/// products are to be timed without the library.
[[nodiscard]] const FoundCublasLt& find_cublaslt();

}  // namespace shardrun::device::cuda
