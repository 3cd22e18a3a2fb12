#pragma once

#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "core/device/device.h"

/// Devices in libraries. A library is loaded when its device is asked for, so the program itself needs none of the
/// libraries that it needs. The file of a device NAME is libshardrun_NAME.so, beside the program's plugins. A library
/// is of the same build as the program: objects and exceptions cross the border.
namespace shardrun::device {

/// How refusals of a device end that every machine can avoid.
inline constexpr std::string_view choose_cpu = "choose device cpu, and transports for host memory";

struct LibraryKernel {
  std::string_view op;
  Kernel kernel;
};

/// The entry of a device library: its build, its device and its kernels. It stays valid until the process ends.
struct DeviceLibrary {
  const char* build;  ///< build_of_devices() of the library; nothing else is read unless it is the program's
  /// Makes the device. Called once.
  std::unique_ptr<const Device> (*open)();
  /// The kernels of the device.
  std::vector<LibraryKernel> (*kernels)();
};

/// The function that a library exports.
inline constexpr const char* library_entry = "shardrun_device_v1";
using LibraryEntry = const DeviceLibrary* (*)();

/// Of this build: the version, and a hash of the headers that a library shares with the program.
[[nodiscard]] const char* build_of_devices() noexcept;

/// The devices that may be in libraries: "cuda".
[[nodiscard]] std::vector<std::string_view> library_devices();

/// Where the library of a device is looked for: beside the program as built, and as installed.
[[nodiscard]] std::vector<std::filesystem::path> library_files(std::string_view device);

/// Loads a device's library for good and registers the device and its kernels. Throws Error{usage} when there is no
/// file, and Error{plugin} when it is not trusted (core/files/trust.h), cannot be loaded or is of another build.
const Device& load_device(std::string_view device, const std::vector<std::filesystem::path>& files);

/// The kernels that are registered for a device, by op.
[[nodiscard]] std::vector<LibraryKernel> kernels_of_device(std::string_view device);

}  // namespace shardrun::device
