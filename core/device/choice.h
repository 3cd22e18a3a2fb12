#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/device/device.h"

namespace shardrun::device {

/// A device, and which of its units the ranks of a machine use: `cuda`, or `cuda:0,2`.
struct DeviceChoice {
  std::string name;
  /// By local rank. Empty: local rank i uses unit i. One that stands twice is shared by two ranks.
  std::vector<std::size_t> units;
};

/// Throws Error{usage} unless a list of numbers follows the colon.
[[nodiscard]] DeviceChoice parse_device(std::string_view text);

/// Throws Error{usage} if the choice names units of a device that has none.
void require_units(const Device& device, const DeviceChoice& choice);

/// The unit of a local rank; 0 for a device without units. Throws Error{usage}, listing the units of this machine, if
/// the choice names one that is not there, or if `local_ranks` ranks have too few; Error{job} from Device::units().
/// `local_ranks`: 0 if unknown.
[[nodiscard]] std::size_t unit_of(const Device& device, const DeviceChoice& choice, std::int64_t local_rank,
                                  std::int64_t local_ranks);

}  // namespace shardrun::device
