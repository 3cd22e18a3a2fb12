#include "core/device/cuda/runtime/cublaslt.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <string_view>

#include "core/base/error.h"

namespace shardrun::device::cuda {
namespace {

/// The first with kernels for compute capability 9.0.
constexpr std::size_t oldest_cublaslt = 120000;
constexpr std::array<const char*, 2> cublaslt_files = {"libcublasLt.so.13", "libcublasLt.so.12"};
constexpr const char* products_variable = "SHARDRUN_CUDA_PRODUCTS";

template <class Function>
void find_symbol(void* library, const char* symbol, Function& to) {
  to = reinterpret_cast<Function>(dlsym(library, symbol));
  if (to == nullptr) {
    throw Error(ErrorCode::job, fmt::format("it has no {}", symbol));
  }
}

std::string version_text(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

/// Throws Error that says what the library lacks.
CublasLt functions_of(void* library) {
  CublasLt found;
  find_symbol(library, "cublasLtGetVersion", found.version);
  const std::size_t version = found.version();
  if (version < oldest_cublaslt) {
    throw Error(ErrorCode::job, fmt::format("it is of version {}, expected {} or newer", version_text(version),
                                            version_text(oldest_cublaslt)));
  }
  found.name = "cuBLASLt " + version_text(version);
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

FoundCublasLt own_kernels(const std::string& why) {
  FoundCublasLt none;
  none.text = "own kernels: " + why;
  return none;
}

FoundCublasLt open_library() {
  std::string lacks;
  for (const char* const file : cublaslt_files) {
    // Never unloaded: kernels of it may run until the process ends.
    void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
      const char* const why = dlerror();
      // The linker's message says what is wrong with a file that exists.
      const bool is_missing = std::string_view(why).find("No such file") != std::string_view::npos;
      if (lacks.empty() || !is_missing) {
        lacks = is_missing ? fmt::format("{} is not found", file) : why;
      }
      continue;
    }
    try {
      FoundCublasLt found;
      found.is_used = true;
      found.functions = functions_of(library);
      found.text = found.functions.name;
      return found;
    } catch (const Error& error) {
      lacks = fmt::format("{} does not fit: {}", file, error.message());
    }
  }
  return own_kernels(lacks);
}

FoundCublasLt choose() {
  const char* const variable = std::getenv(products_variable);
  const std::string_view chosen = variable == nullptr ? "" : variable;
  if (chosen == "own") {
    return own_kernels(fmt::format("{}=own", products_variable));
  }
  if (!chosen.empty() && chosen != "cublaslt" && chosen != "unpadded" && chosen != "unfused") {
    throw Error(ErrorCode::job,
                fmt::format("the variable {} is '{}'; expected own, cublaslt, unpadded or unfused, or no such variable",
                            products_variable, chosen));
  }
  FoundCublasLt found = open_library();
  if (!found.is_used && !chosen.empty()) {
    throw Error(ErrorCode::job,
                fmt::format("the variable {} asks for cuBLASLt, which cannot be used ({}): name its folder in "
                            "LD_LIBRARY_PATH, or take the variable away",
                            products_variable, found.text));
  }
  found.is_asked_for = !chosen.empty();
  if (chosen == "unpadded") {
    found.pads = false;
    found.text += ", rows unpadded";
  } else if (chosen == "unfused") {
    found.fuses = false;
    found.text += ", unfused";
  }
  return found;
}

}  // namespace

const FoundCublasLt& find_cublaslt() {
  static const FoundCublasLt found = choose();
  return found;
}

}  // namespace shardrun::device::cuda
