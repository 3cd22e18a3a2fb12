#include "core/device/library.h"

// A library of device `cuda` that another build has made.

extern "C" const shardrun::device::DeviceLibrary* shardrun_device_v1() {
  static const shardrun::device::DeviceLibrary library = {
      .build = "0.0.9-0123456789ab", .open = nullptr, .kernels = nullptr};
  return &library;
}
