#pragma once

#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "core/device/device.h"

/// Devices in libraries. A library is loaded when its device is asked for, so that the program itself does not need the
/// libraries on which a device depends. The file of device NAME is libshardrun_NAME.so, beside the program's plugins.
/// Library and program must come from the same build, because objects and exceptions cross between them.
namespace shardrun::device {

/// The advice at the end of messages that refuse a device. Every machine can follow it.
inline constexpr std::string_view choose_cpu = "choose device cpu, and transports for host memory";

struct LibraryKernel {
  std::string_view op;
  Kernel kernel;
};

/// The entry of a device library: its build, its device and its kernels. It stays valid until the process ends.
struct DeviceLibrary {
  const char* build;  ///< build_of_devices() of the library; if the program's differs, nothing else is read
  /// Makes the device. Called once.
  std::unique_ptr<const Device> (*open)();
  /// The kernels of the device.
  std::vector<LibraryKernel> (*kernels)();
};

/// The function that a library exports.
inline constexpr const char* library_entry = "shardrun_device_v1";
using LibraryEntry = const DeviceLibrary* (*)();

/// Identifies this build: the version, and a hash of the compiler and of the headers that program and libraries share.
[[nodiscard]] const char* build_of_devices() noexcept;

/// The devices whose code can be in a shared library, which is loaded when a job asks for the device: "cuda".
[[nodiscard]] std::vector<std::string_view> library_devices();

/// The paths at which a device's library is looked for: beside the program as built, and as installed.
[[nodiscard]] std::vector<std::filesystem::path> library_files(std::string_view device);

/// Loads a device's library from the first of `files` that exists, and registers the device and its kernels. The
/// library stays loaded. Throws Error{usage} if no file exists, and Error{plugin} if the file is not trusted
/// (core/files/trust.h), cannot be loaded, is no library of a device, or is of another build.
const Device& load_device(std::string_view device, const std::vector<std::filesystem::path>& files);

/// The kernels that are registered for a device, by op.
[[nodiscard]] std::vector<LibraryKernel> kernels_of_device(std::string_view device);

}  // namespace shardrun::device
