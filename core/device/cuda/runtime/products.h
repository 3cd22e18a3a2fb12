#pragma once

#include <memory>

#include "core/device/cuda/runtime/library_op.h"
#include "core/device/cuda/runtime/library_product.h"

/// The ops that are products of matrices, computed by a library where it is found, else by our own kernels.
namespace shardrun::device::cuda {

/// Prepares an op of products for its memory. Our own kernel computes it if `library` is null or has no algorithm for
/// it. REQUIRES: is_product(op.kernel.op). Throws Error{internal} when the library fails.
[[nodiscard]] std::unique_ptr<const PreparedKernel> prepare_product(LibraryProducts* library, OpToPrepare op);

/// As Device::fuse: the library's product `first` with `next` as its epilogue.
[[nodiscard]] std::unique_ptr<const PreparedKernel> fuse_product(LibraryProducts& library, const PreparedKernel& first,
                                                                 const PreparedKernel& next);

}  // namespace shardrun::device::cuda
