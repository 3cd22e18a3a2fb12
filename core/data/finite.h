#pragma once

#include "core/data/npy.h"

namespace shardrun::data {

/// Throws Error{data}, which names by row and column the first value that is NaN, infinite or too large for float32,
/// the type in which runs compute. Reads an array of reals once, with `threads` threads. Does not read integers.
void require_finite(const NpyArray& array, int threads);

}  // namespace shardrun::data
