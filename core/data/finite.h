#pragma once

#include "core/data/npy.h"

namespace shardrun::data {

/// Throws Error{data} that names the first value, by row and column, that is NaN, infinite, or too large for the
/// float32 in which all is computed. Reads an array of reals once, divided among `threads`; integers are finite unread.
void require_finite(const NpyArray& array, int threads);

}  // namespace shardrun::data
