#pragma once

#include "core/data/npy.h"

namespace shardrun::data {

/// Throws Error{data} with the place of the first value that is NaN, infinite or too large for float32. Reads an array
/// of real numbers once, with `threads` threads. Does not read an array of integers.
void require_finite(const NpyArray& array, int threads);

}  // namespace shardrun::data
