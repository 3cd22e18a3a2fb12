#include "core/device/device.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/device/elements.h"
#include "core/device/host_device.h"
#include "core/device/library.h"

namespace shardrun::device {

namespace {

struct Registered {
  Kernel kernel;
  int level = 0;
  std::unique_ptr<const AddedKernel> added = {};  ///< owns Kernel::added
};

using Kernels = std::map<std::string, Registered, std::less<>>;

/// The kernels of all devices, by device name. Static objects add to it before main, plugins and libraries later.
std::map<std::string, Kernels, std::less<>>& registry() {
  static std::map<std::string, Kernels, std::less<>> kernels;
  return kernels;
}

/// All registered devices. The list begins with the program's own.
std::vector<std::unique_ptr<const Device>>& devices() {
  static std::vector<std::unique_ptr<const Device>> known = [] {
    std::vector<std::unique_ptr<const Device>> own;
    own.push_back(std::make_unique<const HostDevice>("cpu"));
    own.push_back(std::make_unique<const HostDevice>("reference", graph::DType::f64));
    return own;
  }();
  return known;
}

}  // namespace

std::vector<graph::TensorType> types_of(std::span<const TensorView> tensors) {
  std::vector<graph::TensorType> types;
  for (const TensorView& tensor : tensors) {
    types.push_back({.dtype = tensor.dtype,
                     .shape = {tensor.shape.begin(), tensor.shape.begin() + tensor.rank},
                     .axes = std::vector<std::string>(tensor.rank)});
  }
  return types;
}

const std::vector<std::unique_ptr<const Device>>& Device::all() { return devices(); }

const Device& Device::find(std::string_view name) {
  std::vector<std::string> names;
  for (const std::unique_ptr<const Device>& device : devices()) {
    if (device->name() == name) {
      return *device;
    }
    names.push_back(device->name());
  }
  for (const std::string_view in_library : library_devices()) {
    if (in_library == name) {
      return load_device(name, library_files(name));
    }
    if (std::ranges::find(names, in_library) == names.end()) {
      names.emplace_back(in_library);
    }
  }
  // "gpu" is spelled almost like "cpu", but means a device in a library.
  const std::string meant = name == "gpu" ? fmt::format(" (did you mean '{}'?)", fmt::join(library_devices(), "', '"))
                                          : did_you_mean(name, names);
  throw Error(ErrorCode::usage,
              fmt::format("no device is called '{}'{}; there are {}", name, meant, fmt::join(names, ", ")));
}

const Kernel* Device::find_kernel(std::string_view op) const {
  const auto kernels = registry().find(kernels_);
  if (kernels != registry().end()) {
    const auto found = kernels->second.find(op);
    if (found != kernels->second.end()) {
      return &found->second.kernel;
    }
  }
  return nullptr;
}

const Kernel& Device::kernel(std::string_view op) const {
  if (const Kernel* const found = find_kernel(op); found != nullptr) {
    return *found;
  }
  throw Error(ErrorCode::internal, fmt::format("device '{}' has no kernel for op '{}'", name_, op));
}

void Device::use_unit(std::size_t unit) const {
  if (unit != 0) {
    throw Error(ErrorCode::internal, fmt::format("device '{}' has no unit {}", name_, unit));
  }
}

std::shared_ptr<const void> Device::pin(std::span<std::byte>) const { return nullptr; }

std::size_t Device::scratch_bytes(const Kernel& kernel, const graph::OpShape& shape, int threads) const {
  if (kernel.added != nullptr) {
    return kernel.added->scratch_bytes(shape);
  }
  return kernel.scratch_bytes == nullptr ? 0 : kernel.scratch_bytes(shape, threads);
}

std::unique_ptr<const PreparedKernel> Device::prepare(const Kernel& kernel, const graph::Attributes& attributes,
                                                      std::vector<TensorView> inputs, std::vector<TensorView> outputs,
                                                      std::span<std::byte> scratch, std::string_view makes) const {
  auto prepared = std::make_unique<PreparedKernel>();
  if (kernel.prepare != nullptr || kernel.added != nullptr) {
    const std::vector<graph::TensorType> of_inputs = types_of(inputs);
    const std::vector<graph::TensorType> of_outputs = types_of(outputs);
    prepared->prepared = prepare_kernel(kernel, {attributes, of_inputs, of_outputs});
  }
  prepared->kernel = &kernel;
  prepared->attributes = &attributes;
  prepared->inputs = std::move(inputs);
  prepared->outputs = std::move(outputs);
  prepared->scratch = scratch;
  prepared->makes = makes;
  return prepared;
}

std::unique_ptr<const PreparedKernel> Device::fuse(const PreparedKernel&, const PreparedKernel&) const {
  return nullptr;
}

std::shared_ptr<void> prepare_kernel(const Kernel& kernel, const graph::OpShape& shape) {
  if (kernel.added != nullptr) {
    return kernel.added->prepare(shape);
  }
  return kernel.prepare == nullptr ? nullptr : kernel.prepare(shape);
}

void run_kernel(const Kernel& kernel, const KernelCall& call) {
  kernel.added != nullptr ? kernel.added->run(call) : kernel.run(call);
  if (call.scalars.round != nullptr) {
    return (*call.scalars.round)(call);
  }
  for (const TensorView& result : call.outputs) {
    if (result.rounded != result.dtype && result.dtype == graph::DType::f64) {
      round_elements(result.rounded, {static_cast<double*>(result.data), static_cast<std::size_t>(result.elements())});
    }
  }
}

RegisterDevice::RegisterDevice(std::unique_ptr<const Device> device) { devices().push_back(std::move(device)); }

RegisterKernel::RegisterKernel(std::string_view device, std::string_view op, Kernel kernel, int level) {
  Kernels& kernels = registry()[std::string(device)];
  const auto [entry, is_new] = kernels.try_emplace(std::string(op), Registered{kernel, level});
  if (!is_new && entry->second.level < level) {
    entry->second = {kernel, level};
  }
  entry->second.kernel.op = entry->first;
}

void add_kernel(std::string_view device, std::string_view op, std::unique_ptr<const AddedKernel> kernel) {
  Registered registered{.kernel = {.added = kernel.get()}};
  registered.added = std::move(kernel);
  const auto entry = registry()[std::string(device)].insert_or_assign(std::string(op), std::move(registered)).first;
  entry->second.kernel.op = entry->first;
}

std::vector<LibraryKernel> kernels_of_device(std::string_view device) {
  std::vector<LibraryKernel> all;
  for (const auto& [op, registered] : registry()[std::string(device)]) {
    all.push_back({op, registered.kernel});
  }
  return all;
}

}  // namespace shardrun::device
