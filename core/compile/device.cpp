#include "core/compile/device.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/device/choice.h"
#include "core/device/cores.h"
#include "core/device/library.h"

namespace shardrun::compile {
const device::Device& find_device(const job::Job& job) {
  try {
    const device::DeviceChoice choice = device::parse_device(job.device);
    const device::Device& device = device::Device::find(choice.name);
    device::require_units(device, choice);
    return device;
  } catch (const Error& error) {
    throw Error(ErrorCode::job, fmt::format("{}: [job] device: {}", job.where("job", "device"), error.message()));
  }
}

std::int64_t ranks_of_machine(const job::Job& job) {
  const device::Device& device = find_device(job);
  if (!device.has_units()) {
    return device::usable_cores();
  }
  if (const std::size_t named = device::parse_device(job.device).units.size(); named > 0) {
    return static_cast<std::int64_t>(named);
  }
  try {
    return static_cast<std::int64_t>(device.units().size());
  } catch (const Error& error) {
    throw Error(ErrorCode::job, fmt::format("{}: [job] ranks: there is one for each unit of device {}, and these "
                                            "cannot be counted: {}. Write a number, or name the units ({}:0,1)",
                                            job.where("job", "ranks"), device.name(), error.message(), device.name()));
  }
}

}  // namespace shardrun::compile
