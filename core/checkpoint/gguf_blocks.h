#pragma once

#include <cstddef>
#include <span>

#include "core/files/gguf.h"

namespace shardrun::checkpoint {

/// Converts whole blocks to float32, with the same bits as gguf-py. REQUIRES: `to` has the size of all elements of
/// `blocks`.
void dequantise(files::GgufType type, std::span<const std::byte> blocks, std::span<float> to);

}  // namespace shardrun::checkpoint
