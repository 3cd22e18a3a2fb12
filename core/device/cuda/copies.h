#pragma once

#include <cstdint>

#include "core/device/device.h"
#include "core/device/queue.h"

/// Kernels that copy, fill and inspect tensors. Of a call they use the stream alone, on which they are enqueued.
namespace shardrun::device::cuda {

void copy_box(const KernelCall& call, const StridedCopy& copy);
/// Copies `from` to `to`, rounded to the type of `to`. Both hold real numbers.
void cast_elements(const KernelCall& call, const TensorView& from, const TensorView& to);
/// Sets each of `count` elements of 1, 2, 4 or 8 bytes to these bits.
void fill_elements(const KernelCall& call, void* data, std::int64_t count, std::size_t element_bytes,
                   std::uint64_t bits);
/// Sets `finite`, which the GPU can address, to 0 if an element is not finite. Otherwise leaves it unchanged.
void find_non_finite(const KernelCall& call, const TensorView& tensor, std::int32_t* finite);
/// Sets a page's element of `pages`, which the GPU can address, to 1 if a 32-bit word of the page differs from `word`.
void find_written(const KernelCall& call, const void* data, std::uint64_t bytes, std::uint32_t word,
                  std::uint8_t* pages);

/// The size of a page in bytes, as on the host.
inline constexpr std::uint64_t page_bytes = 4096;

}  // namespace shardrun::device::cuda
