#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/device/device.h"

namespace shardrun::device {

/// A device, and which of its units the ranks of a machine use. Users write `cuda`, or `cuda:0,2`.
struct DeviceChoice {
  std::string name;
  /// The unit of each local rank. Empty: local rank i uses unit i. A unit listed twice is shared by two ranks.
  std::vector<std::size_t> units;
};

/// Reads a choice as users write it. Throws Error{usage} if a colon is not followed by a list of numbers.
[[nodiscard]] DeviceChoice parse_device(std::string_view text);

/// Throws Error{usage} if the choice names units of a device that has none.
void require_units(const Device& device, const DeviceChoice& choice);

/// Returns the unit of a local rank; 0 for a device without units. `local_ranks` is 0 if their number is not known.
/// Throws Error{usage} if the choice names a unit that this machine does not have (the message lists those it has), if
/// there are too few units for the ranks, and as require_units() does. Throws Error{job} as Device::units() does.
[[nodiscard]] std::size_t unit_of(const Device& device, const DeviceChoice& choice, std::int64_t local_rank,
                                  std::int64_t local_ranks);

}  // namespace shardrun::device
