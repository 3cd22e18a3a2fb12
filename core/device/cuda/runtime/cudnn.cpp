#include "core/device/cuda/runtime/cudnn.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <initializer_list>
#include <system_error>

#include "core/base/standard_error.h"
#include "core/device/cuda/runtime/cudnn_graph.h"
#include "core/device/cuda/runtime/shared_library.h"

namespace shardrun::device::cuda {
namespace {

/// The first version whose gradient of attention is correct for any number of keys.
constexpr std::size_t oldest_cudnn = 91600;

/// Files that libcudnn.so.9 opens when it needs them. If the first is missing, a cuDNN call aborts the process; if
/// another is missing, no plan can be made.
constexpr std::array<const char*, 4> parts_of_cudnn = {"libcudnn_graph.so.9", "libcudnn_heuristic.so.9",
                                                       "libcudnn_engines_precompiled.so.9",
                                                       "libcudnn_engines_runtime_compiled.so.9"};

/// Opens the file in the first of the folders that contains it, else where the linker finds it. cuDNN then uses the
/// same file. Throws an Error that says why it cannot be opened.
void open_part(std::string file, const std::filesystem::path& folder, std::initializer_list<const char*> folders) {
  for (const char* const below : folders) {
    const std::filesystem::path there = folder / below / file;
    std::error_code ignored;
    if (std::filesystem::exists(there, ignored)) {
      file = there.string();
      break;
    }
  }
  if (dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) == nullptr) {
    throw Error(ErrorCode::job, dlerror());
  }
}

std::filesystem::path folder_of(const void* function) {
  Dl_info info = {};
  return dladdr(function, &info) == 0 ? "" : std::filesystem::path(info.dli_fname).parent_path();
}

/// Opens NVRTC, which compiles the attention kernels. Throws an Error that says what is missing.
void open_nvrtc(void* library, const std::filesystem::path& folder) {
  decltype(&cudnnGetCudartVersion) cuda_version = nullptr;
  find_symbol(library, "cudnnGetCudartVersion", cuda_version);
  // Looks where cuDNN itself would: also in the folders of Python's packages, and also for the name without a version.
  const auto open = [&](const std::string& file) {
    open_part(file, folder, {"", "../../cuda_nvrtc/lib", "../../cu13/lib"});
  };
  try {
    open(fmt::format("libnvrtc.so.{}", cuda_version() / 1000));
  } catch (const Error&) {
    open("libnvrtc.so");
  }
}

/// Finds the library's functions. Throws an Error that says what the library lacks.
CudnnFunctions cudnn_functions_of(void* library) {
  CudnnFunctions found;
  find_symbol(library, "cudnnGetVersion", found.version);
  for (const char* const part : parts_of_cudnn) {
    open_part(part, folder_of(reinterpret_cast<const void*>(found.version)), {""});
  }
  found.name = "cuDNN " + checked_version(found.version(), oldest_cudnn);
  find_symbol(library, "cudnnCreate", found.create);
  find_symbol(library, "cudnnSetStream", found.set_stream);
  find_symbol(library, "cudnnGetErrorString", found.error_string);
  find_symbol(library, "cudnnGetLastErrorString", found.last_error);
  find_symbol(library, "cudnnBackendCreateDescriptor", found.descriptor_create);
  find_symbol(library, "cudnnBackendDestroyDescriptor", found.descriptor_destroy);
  find_symbol(library, "cudnnBackendSetAttribute", found.descriptor_set);
  find_symbol(library, "cudnnBackendGetAttribute", found.descriptor_get);
  find_symbol(library, "cudnnBackendFinalize", found.descriptor_finalize);
  find_symbol(library, "cudnnBackendExecute", found.execute);
  return found;
}

FoundCudnn choose_cudnn() {
  FoundCudnn found;
  const LibraryChoice choice = choice_of_dnn();
  found.is_asked_for = !chosen_by_variable(choice).empty();
  const OpenedLibrary opened = open_library(choice, [&](void* library) {
    found.functions = std::make_shared<const CudnnFunctions>(cudnn_functions_of(library));
    try {
      open_nvrtc(library, folder_of(reinterpret_cast<const void*>(found.functions->version)));
      found.attends = true;
    } catch (const Error& error) {
      if (found.is_asked_for) {
        throw;
      }
      return fmt::format("{}, without NVRTC: own kernels attend ({})", found.functions->name, error.message());
    }
    return found.functions->name;
  });
  found.is_used = opened.is_used;
  found.text = opened.text;
  if (opened.chosen == "cudnn-fastest") {
    found.is_fastest = true;
    found.text += ", attention's gradient in no fixed order";
  }
  return found;
}

}  // namespace

const FoundCudnn& find_cudnn() {
  static const FoundCudnn found = choose_cudnn();
  return found;
}

std::shared_ptr<CudnnTarget> start_cudnn(const Gpu& gpu) {
  const FoundCudnn& found = find_cudnn();
  if (!found.is_used) {
    return nullptr;
  }
  try {
    return std::make_shared<CudnnTarget>(*found.functions, gpu);
  } catch (const Error& error) {
    if (found.is_asked_for) {
      throw;
    }
    write_to_standard_error(fmt::format("shardrun: {}: our own kernels attend and convolve\n", error.message()));
    return nullptr;
  }
}

}  // namespace shardrun::device::cuda
