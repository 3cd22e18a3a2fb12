#include "core/device/library.h"

// A library of the device `cuda` that claims to come from another build.

extern "C" const shardrun::device::DeviceLibrary* shardrun_device_v1() {
  static const shardrun::device::DeviceLibrary library = {
      .build = "0.0.9-0123456789ab", .open = nullptr, .kernels = nullptr};
  return &library;
}
