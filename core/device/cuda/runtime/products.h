#pragma once

#include <memory>

#include "core/device/cuda/runtime/library_op.h"
#include "core/device/cuda/runtime/library_product.h"

/// The ops that are products of matrices, computed by a library if it is found, else by our own kernels.
namespace shardrun::device::cuda {

/// Binds such an op to its memory. Our own kernel computes it if `library` is null or has no algorithm for it.
/// REQUIRES: is_product(op.kernel.op). Throws Error{internal} if the library fails.
[[nodiscard]] std::unique_ptr<const PreparedKernel> prepare_product(LibraryProducts* library, OpToPrepare op);

/// Like Device::fuse(): makes `next` the epilogue of the library's product `first`.
[[nodiscard]] std::unique_ptr<const PreparedKernel> fuse_product(LibraryProducts& library, const PreparedKernel& first,
                                                                 const PreparedKernel& next);

}  // namespace shardrun::device::cuda
