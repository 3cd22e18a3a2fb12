#pragma once

#include <memory>

#include "core/device/cuda/runtime/convolution_steps.h"
#include "core/device/cuda/runtime/library_op.h"

/// Convolutions and their gradients, computed by cuDNN where it is found, else by our own kernels.
namespace shardrun::device::cuda {

class LibraryConvolutions;

/// Prepares a convolution for its memory. Our own kernel computes it if `library` is null or has no engine for it, and
/// parts of images that are split. REQUIRES: is_convolution(op.kernel.op). Throws Error{internal} when the library
/// fails. `most_bytes`: of a part, at most as planned.
[[nodiscard]] std::unique_ptr<const PreparedKernel> prepare_convolution(
    LibraryConvolutions* library, OpToPrepare op, std::int64_t most_bytes = most_convolution_bytes);

}  // namespace shardrun::device::cuda
