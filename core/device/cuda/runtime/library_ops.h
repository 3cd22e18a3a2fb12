#pragma once

#include <memory>

#include "core/device/cuda/runtime/cudnn_library.h"
#include "core/device/cuda/runtime/library_op.h"
#include "core/device/cuda/runtime/library_product.h"

/// A library computes products of matrices, attention and convolutions if it is found. Otherwise our own kernels do.
namespace shardrun::device::cuda {

/// Binds a product to its memory. Our own kernel computes it if `library` is null or has no algorithm for it.
/// REQUIRES: is_product(op.kernel.op). Throws as LibraryProducts::find() does.
[[nodiscard]] std::unique_ptr<const PreparedKernel> prepare_product(LibraryProducts* library, OpToPrepare op);

/// Like Device::fuse(): makes `next` the epilogue of the library's product `first`. Null if no epilogue computes it.
[[nodiscard]] std::unique_ptr<const PreparedKernel> fuse_product(LibraryProducts& library, const PreparedKernel& first,
                                                                 const PreparedKernel& next);

/// Binds attention to its memory. Our own kernel computes it if `library` is null or has no engine for it, if a tensor
/// is not aligned to 16 bytes, or if a causal op lacks the sequence's first query. `most_bytes`: workspace limit of a
/// part, at most as planned. REQUIRES: is_attention(op.kernel.op). Throws Error{internal} if the library fails.
[[nodiscard]] std::unique_ptr<const PreparedKernel> prepare_attention(const FindAttention* library, OpToPrepare op,
                                                                      std::int64_t most_bytes = most_attention_bytes);

/// Binds a convolution to its memory. Our own kernel computes it if `library` is null or has no engine for it, and for
/// split images. `most_bytes`: scratch limit of a part, at most as planned. REQUIRES: is_convolution(op.kernel.op).
/// Throws Error{internal} if the library fails.
[[nodiscard]] std::unique_ptr<const PreparedKernel> prepare_convolution(
    const FindConvolution* library, OpToPrepare op, std::int64_t most_bytes = most_convolution_bytes);

}  // namespace shardrun::device::cuda
