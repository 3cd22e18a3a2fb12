#pragma once

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

/// Libraries that are opened while the program runs, if they exist and no environment variable chooses our own kernels.
namespace shardrun::device::cuda {

struct LibraryChoice {
  const char* name;      ///< "cuBLASLt"
  const char* variable;  ///< the variable that chooses; not set or empty: the library if it is found
  std::vector<std::string_view> values = {};  ///< accepted values: "own" for our own kernels, others for the library
  std::vector<const char*> files = {};                        ///< in the order in which they are tried
  std::string lacks = {};                                     ///< why there is no library, if `files` is empty
  const char* remedy = "name its folder in LD_LIBRARY_PATH";  ///< what to do if it cannot be used
};

[[nodiscard]] LibraryChoice choice_of_products();  ///< cuBLASLt
[[nodiscard]] LibraryChoice choice_of_dnn();       ///< cuDNN

struct OpenedLibrary {
  bool is_used = false;
  std::string text = {};         ///< for people: the library's name and version, or "own kernels: " and the reason
  std::string_view chosen = {};  ///< the value of the variable
};

/// The variable's value, or "" if it is not set. Throws Error{job} if it is none of `values`.
[[nodiscard]] std::string_view chosen_by_variable(const LibraryChoice& choice);

/// Opens the first file that exists and that `take` accepts. The file is never closed, because its kernels can run
/// until the process ends. `take` finds the library's functions and returns the library's name and version, or throws
/// an Error that says what the library lacks. Throws Error{job} as chosen_by_variable() does, or if the variable asks
/// for a library that cannot be used.
[[nodiscard]] OpenedLibrary open_library(const LibraryChoice& choice, const std::function<std::string(void*)>& take);

template <class Function>
void find_symbol(void* library, const char* symbol, Function& to) {
  to = reinterpret_cast<Function>(dlsym(library, symbol));
  if (to == nullptr) {
    throw Error(ErrorCode::job, fmt::format("it has no {}", symbol));
  }
}

/// Returns 130100 as "13.1.0". Throws Error{job} if the version is older than `oldest`.
[[nodiscard]] std::string checked_version(std::size_t version, std::size_t oldest);

}  // namespace shardrun::device::cuda
