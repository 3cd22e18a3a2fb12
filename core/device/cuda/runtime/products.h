#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/device/cuda/runtime/library_product.h"
#include "core/device/device.h"
#include "core/device/library.h"

/// The ops that are products of matrices, computed by a library where it is found, else by our own kernels.
namespace shardrun::device::cuda {

/// Own kernels of the device; those of products plan the scratch that a library needs. Plans are then the same with and
/// without it.
[[nodiscard]] std::vector<LibraryKernel> with_scratch_of_products(std::vector<LibraryKernel> own);

/// Prepares an op of products for its memory. `library`: null: our own kernel computes it, and so it does what the
/// library has no algorithm for. `kernel`, `attributes` and `library` outlive the result. REQUIRES:
/// is_product(kernel.op). Throws Error{internal} when the library fails.
[[nodiscard]] std::unique_ptr<const PreparedKernel> prepare_product(
    LibraryProducts* library, const Kernel& kernel, const graph::Attributes& attributes, std::vector<TensorView> inputs,
    std::vector<TensorView> outputs, std::span<std::byte> scratch, std::string_view makes);

/// As Device::fuse: the library's product `first` with what `next` computes of its result as its epilogue.
[[nodiscard]] std::unique_ptr<const PreparedKernel> fuse_product(LibraryProducts& library, const PreparedKernel& first,
                                                                 const PreparedKernel& next);

}  // namespace shardrun::device::cuda
