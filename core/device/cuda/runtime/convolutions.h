#pragma once

#include <memory>

#include "core/device/cuda/runtime/convolution_steps.h"
#include "core/device/cuda/runtime/library_op.h"

/// Convolutions and their gradients, computed by cuDNN if it is found, else by our own kernels.
namespace shardrun::device::cuda {

class LibraryConvolutions;

/// Binds a convolution to its memory. Our own kernel computes it if `library` is null or has no engine for it, and for
/// split images. `most_bytes`: scratch limit of a part, at most as planned. REQUIRES: is_convolution(op.kernel.op).
/// Throws Error{internal} if the library fails.
[[nodiscard]] std::unique_ptr<const PreparedKernel> prepare_convolution(
    LibraryConvolutions* library, OpToPrepare op, std::int64_t most_bytes = most_convolution_bytes);

}  // namespace shardrun::device::cuda
