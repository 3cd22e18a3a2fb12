#pragma once

#include <cstdint>

#include "core/device/device.h"
#include "core/job/job.h"

namespace shardrun::compile {

/// The device that the job names. Throws Error{job} if it does not exist.
[[nodiscard]] const device::Device& find_device(const job::Job& job);

/// The number of ranks that this machine has room for: one per unit that [job] device names, or that the machine has.
/// For a device without units, one per core that this process may use. Throws Error{job} if the device or a unit does
/// not exist.
[[nodiscard]] std::int64_t ranks_of_machine(const job::Job& job);

}  // namespace shardrun::compile
