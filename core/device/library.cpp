#include "core/device/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>

#include "core/base/error.h"
#include "core/files/trust.h"

namespace shardrun::device {

const char* build_of_devices() noexcept { return SHARDRUN_DEVICE_BUILD; }

std::vector<std::string_view> library_devices() { return {"cuda"}; }

std::vector<std::filesystem::path> library_files(std::string_view device) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::string name = fmt::format("libshardrun_{}.so", device);
  std::vector<std::filesystem::path> files = {program / "lib/shardrun" / name,
                                              (program / SHARDRUN_DEVICES_FROM_BINDIR / name).lexically_normal()};
  return files;
}

const Device& load_device(std::string_view device, const std::vector<std::filesystem::path>& files) {
  std::error_code none;
  const auto file = std::ranges::find_if(files, [&](const auto& each) { return std::filesystem::exists(each, none); });
  if (file == files.end()) {
    std::vector<std::string> names;
    std::ranges::transform(files, std::back_inserter(names), [](const auto& each) { return each.string(); });
    throw Error(
        ErrorCode::usage,
        fmt::format("this build has no device '{0}': there is no library {1}. 'cmake --build --preset release --target "
                    "shardrun_{0}' makes it where CMake finds a toolkit for {0} (it says so); or {2}",
                    device, fmt::join(names, " or "), choose_cpu));
  }
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::plugin, fmt::format("the library of device '{}', {}, {}", device, file->string(), what));
  };
  files::require_trusted(*file);
  // The library is never unloaded, because its queues and kernels can live as long as the process.
  void* const library = dlopen(file->c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    refuse(fmt::format("cannot be loaded: {}", dlerror()));
  }
  const auto entry = reinterpret_cast<LibraryEntry>(dlsym(library, library_entry));
  if (entry == nullptr) {
    refuse(fmt::format("does not export {}: it is no library of a device", library_entry));
  }
  const DeviceLibrary& given = *entry();
  if (std::string_view(given.build) != build_of_devices()) {
    refuse(fmt::format("is of build {}, and this program is of build {}: build or install both together", given.build,
                       build_of_devices()));
  }
  std::unique_ptr<const Device> opened = given.open();  // first, because this can throw
  for (const LibraryKernel& each : given.kernels()) {
    const RegisterKernel registered(device, each.op, each.kernel);
  }
  const RegisterDevice registered(std::move(opened));
  return *Device::all().back();
}

}  // namespace shardrun::device
