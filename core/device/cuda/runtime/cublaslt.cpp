#include "core/device/cuda/runtime/cublaslt.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "core/base/error.h"
#include "core/device/cuda/runtime/shared_library.h"
#include "core/device/cuda/runtime/timed_products.h"

namespace shardrun::device::cuda {
namespace {

/// The oldest version that is used: the first of libcublasLt.so.12, with kernels for compute capability 9.0.
constexpr std::size_t oldest_cublaslt = 120000;

/// Finds the library's functions. Throws an Error that says what the library lacks.
CublasLt functions_of(void* library) {
  CublasLt found;
  find_symbol(library, "cublasLtGetVersion", found.version);
  found.name = "cuBLASLt " + checked_version(found.version(), oldest_cublaslt);
  find_symbol(library, "cublasLtCreate", found.create);
  find_symbol(library, "cublasLtGetStatusName", found.status_name);
  find_symbol(library, "cublasLtMatmulDescCreate", found.operation_create);
  find_symbol(library, "cublasLtMatmulDescDestroy", found.operation_destroy);
  find_symbol(library, "cublasLtMatmulDescSetAttribute", found.operation_set);
  find_symbol(library, "cublasLtMatrixLayoutCreate", found.layout_create);
  find_symbol(library, "cublasLtMatrixLayoutDestroy", found.layout_destroy);
  find_symbol(library, "cublasLtMatrixLayoutSetAttribute", found.layout_set);
  find_symbol(library, "cublasLtMatmulPreferenceCreate", found.preference_create);
  find_symbol(library, "cublasLtMatmulPreferenceDestroy", found.preference_destroy);
  find_symbol(library, "cublasLtMatmulPreferenceSetAttribute", found.preference_set);
  find_symbol(library, "cublasLtMatmulAlgoGetHeuristic", found.heuristic);
  find_symbol(library, "cublasLtMatmul", found.multiply);
  return found;
}

FoundCublasLt choose() {
  FoundCublasLt found;
  const OpenedLibrary opened = open_library(choice_of_products(), [&](void* library) {
    found.functions = functions_of(library);
    return found.functions.name;
  });
  found.is_used = opened.is_used;
  found.text = opened.text;
  found.is_asked_for = !opened.chosen.empty();
  if (opened.chosen == "unfused") {
    found.fuses = false;
    found.text += ", unfused";
  }
  if (const char* const file = std::getenv(timed_products_variable); file != nullptr && *file != '\0') {
    if (!found.is_used) {
      throw Error(ErrorCode::job,
                  fmt::format("the variable {} asks for products by cuBLASLt, and there are {}: take the "
                              "variable away, or make cuBLASLt usable",
                              timed_products_variable, found.text));
    }
    found.timed_products = file;
    found.is_asked_for = true;
    found.text += ", timed";
  }
  return found;
}

}  // namespace

const FoundCublasLt& find_cublaslt() {
  static const FoundCublasLt found = choose();
  return found;
}

}  // namespace shardrun::device::cuda
