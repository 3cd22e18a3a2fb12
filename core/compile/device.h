#pragma once

#include <cstdint>

#include "core/device/device.h"
#include "core/job/job.h"

namespace shardrun::compile {

/// The device that the job names. Throws Error{job}.
[[nodiscard]] const device::Device& find_device(const job::Job& job);

/// The number of ranks for which this machine has room: one for each unit that [job] device names, or that the machine
/// has; with a device without units, one for each core that this process may use. Throws Error{job} if there is no such
/// device or unit.
[[nodiscard]] std::int64_t ranks_of_machine(const job::Job& job);

}  // namespace shardrun::compile
