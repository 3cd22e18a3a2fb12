#pragma once

#include <memory>

#include "core/device/cuda/runtime/attention_steps.h"
#include "core/device/cuda/runtime/library_op.h"

/// Attention and its gradient, computed by cuDNN if it is found, else by our own kernels.
namespace shardrun::device::cuda {

class LibraryAttention;

/// Binds attention to its memory. Our own kernel computes it if `library` is null or has no engine for it, and for
/// causal attention whose first query is not the first of the sequence. `most_bytes`: workspace limit of a part, at
/// most as planned. REQUIRES: is_attention(op.kernel.op). Throws Error{internal} if the library fails.
[[nodiscard]] std::unique_ptr<const PreparedKernel> prepare_attention(LibraryAttention* library, OpToPrepare op,
                                                                      std::int64_t most_bytes = most_attention_bytes);

}  // namespace shardrun::device::cuda
