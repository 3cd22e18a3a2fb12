#include "core/device/cuda/runtime/shared_library.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

namespace shardrun::device::cuda {
namespace {

/// Opens the first usable file. If there is none, the result's text says why.
OpenedLibrary open_files(const LibraryChoice& choice, const std::function<std::string(void*)>& take) {
  std::string lacks = choice.lacks;
  for (const char* const file : choice.files) {
    void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
      const char* const why = dlerror();
      // For a file that exists, the linker's message says what is wrong with it.
      const bool is_missing = std::string_view(why).find("No such file") != std::string_view::npos;
      if (lacks.empty() || !is_missing) {
        lacks = is_missing ? fmt::format("{} is not found", file) : why;
      }
      continue;
    }
    try {
      return {.is_used = true, .text = take(library)};
    } catch (const Error& error) {
      lacks = fmt::format("{} does not fit: {}", file, error.message());
    }
  }
  return {.is_used = false, .text = lacks};
}

std::string version_text(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

LibraryChoice choice_of_products() {
  return {.name = "cuBLASLt",
          .variable = "SHARDRUN_CUDA_PRODUCTS",
          .values = {"own", "cublaslt", "unfused"},
          .files = {"libcublasLt.so.13", "libcublasLt.so.12"}};
}

LibraryChoice choice_of_dnn() {
  return {.name = "cuDNN",
          .variable = "SHARDRUN_CUDA_DNN",
          .values = {"own", "cudnn", "cudnn-fastest"},
          .files = {"libcudnn.so.9"}};
}

std::string_view chosen_by_variable(const LibraryChoice& choice) {
  const char* const variable = std::getenv(choice.variable);
  const std::string_view chosen = variable == nullptr ? "" : variable;
  const std::vector<std::string_view>& values = choice.values;
  if (!chosen.empty() && std::find(values.begin(), values.end(), chosen) == values.end()) {
    throw Error(ErrorCode::job,
                fmt::format("the variable {} is '{}'; expected {} or {}, or no such variable", choice.variable, chosen,
                            fmt::join(values.begin(), values.end() - 1, ", "), values.back()));
  }
  return chosen;
}

OpenedLibrary open_library(const LibraryChoice& choice, const std::function<std::string(void*)>& take) {
  const std::string_view chosen = chosen_by_variable(choice);
  if (chosen == "own") {
    return {.is_used = false, .text = fmt::format("own kernels: {}=own", choice.variable), .chosen = chosen};
  }
  OpenedLibrary opened = open_files(choice, take);
  if (!opened.is_used) {
    if (!chosen.empty()) {
      throw Error(ErrorCode::job,
                  fmt::format("the variable {} asks for {}, which cannot be used ({}): {}, or take the variable away",
                              choice.variable, choice.name, opened.text, choice.remedy));
    }
    opened.text = "own kernels: " + opened.text;
  }
  opened.chosen = chosen;
  return opened;
}

std::string checked_version(std::size_t version, std::size_t oldest) {
  if (version < oldest) {
    throw Error(ErrorCode::job,
                fmt::format("it is of version {}, expected {} or newer", version_text(version), version_text(oldest)));
  }
  return version_text(version);
}

}  // namespace shardrun::device::cuda
