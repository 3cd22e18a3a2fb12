#pragma once

#include <memory>

#include "core/device/cuda/runtime/attention_steps.h"
#include "core/device/cuda/runtime/library_op.h"

/// Attention and its gradient, computed by cuDNN where it is found, else by our own kernels.
namespace shardrun::device::cuda {

class LibraryAttention;

/// Prepares attention for its memory. Our own kernel computes it if `library` is null or has no engine for it, and
/// causal attention of queries that do not begin with the first. REQUIRES: is_attention(op.kernel.op). Throws
/// Error{internal} when the library fails. `most_bytes`: of a part, at most as planned.
[[nodiscard]] std::unique_ptr<const PreparedKernel> prepare_attention(LibraryAttention* library, OpToPrepare op,
                                                                      std::int64_t most_bytes = most_attention_bytes);

}  // namespace shardrun::device::cuda
