#include "core/device/device.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <map>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/device/elements.h"

namespace shardrun::device {

namespace {

struct Registered {
  Kernel kernel;
  int level = 0;
};

using Kernels = std::map<std::string, Registered, std::less<>>;

/// Filled by static objects before main, only read afterwards.
std::map<std::string, Kernels, std::less<>>& registry() {
  static std::map<std::string, Kernels, std::less<>> kernels;
  return kernels;
}

const std::vector<Device>& devices() {
  static const std::vector<Device> known = {Device("cpu"), Device("reference", graph::DType::f64)};
  return known;
}

}  // namespace

const Device& Device::find(std::string_view name) {
  std::vector<std::string> names;
  for (const Device& device : devices()) {
    if (device.name() == name) {
      return device;
    }
    names.push_back(device.name());
  }
  throw Error(ErrorCode::usage, fmt::format("no device is called '{}'{}; there are {}", name, did_you_mean(name, names),
                                            fmt::join(names, ", ")));
}

const Kernel& Device::kernel(std::string_view op) const {
  const auto kernels = registry().find(name_);
  if (kernels != registry().end()) {
    const auto found = kernels->second.find(op);
    if (found != kernels->second.end()) {
      return found->second.kernel;
    }
  }
  throw Error(ErrorCode::internal, fmt::format("device '{}' has no kernel for op '{}'", name_, op));
}

void Device::run(const Kernel& kernel, const KernelCall& call) const {
  kernel.run(call);
  for (const TensorView& result : call.outputs) {
    if (result.rounded != result.dtype && result.dtype == graph::DType::f64) {
      round_elements(result.rounded, {static_cast<double*>(result.data), static_cast<std::size_t>(result.elements())});
    }
  }
}

RegisterKernel::RegisterKernel(std::string_view device, std::string_view op, Kernel kernel, int level) {
  Kernels& kernels = registry()[std::string(device)];
  const auto [entry, added] = kernels.try_emplace(std::string(op), Registered{kernel, level});
  if (!added && entry->second.level < level) {
    entry->second = {kernel, level};
  }
}

}  // namespace shardrun::device
