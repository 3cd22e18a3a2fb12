#pragma once

#include <cstddef>
#include <span>

#include "core/files/gguf.h"

namespace shardrun::checkpoint {

/// The float32 numbers of whole blocks, bit for bit those that gguf-py computes. REQUIRES: `blocks` has as many blocks
/// as make up `to`.
void dequantise(files::GgufType type, std::span<const std::byte> blocks, std::span<float> to);

}  // namespace shardrun::checkpoint
