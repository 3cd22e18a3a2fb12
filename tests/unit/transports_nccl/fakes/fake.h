#pragma once

#include <cuda.h>

#include <atomic>
#include <memory>

// What the two fake libraries tell each other. Device memory is host memory, and a stream is the list of what it waits
// for.

using FakeWork = std::shared_ptr<std::atomic<bool>>;  ///< true once it is done

__attribute__((visibility("default"))) void fake_stream_add(CUstream stream, const FakeWork& work);
/// Whether a device is current in this thread, as NCCL needs it.
__attribute__((visibility("default"))) bool fake_has_context();
