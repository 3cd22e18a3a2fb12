#pragma once

#include <cstdint>

#include "core/device/device.h"
#include "core/device/queue.h"

/// Kernels that move tensors and look at them, without computing. Each is enqueued on the call's stream; other fields
/// of the call are not read.
namespace shardrun::device::cuda {

void copy_box(const KernelCall& call, const StridedCopy& copy);
/// to = from, rounded to the type of `to`. Both are of real numbers.
void cast_elements(const KernelCall& call, const TensorView& from, const TensorView& to);
/// Gives each of `count` elements of 1, 2, 4 or 8 bytes these bits.
void fill_elements(const KernelCall& call, void* data, std::int64_t count, std::size_t element_bytes,
                   std::uint64_t bits);
/// Sets `finite`, which the GPU can address, to 0 if a real element is not finite. Otherwise leaves it.
void find_non_finite(const KernelCall& call, const TensorView& tensor, std::int32_t* finite);
/// Adds to `pages`, in memory of the GPU, for each page whether a word of it differs from `word`: 1 or 0.
void find_written(const KernelCall& call, const void* data, std::uint64_t bytes, std::uint32_t word,
                  std::uint8_t* pages);

/// Bytes of such a page: as of the host's.
inline constexpr std::uint64_t page_bytes = 4096;

}  // namespace shardrun::device::cuda
