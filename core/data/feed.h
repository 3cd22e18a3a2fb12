#pragma once

#include <cstdint>

#include "core/data/dataset.h"

namespace shardrun::data {

// Samples for a function's inputs, whole or this rank's parts of them: `first` is the global sample of the whole's
// first row. Parts by rows alone allocate nothing on the cpu device.

void feed_training(const Dataset& dataset, std::uint64_t seed, std::int64_t first, const device::TensorView& inputs,
                   const device::TensorView& targets, std::size_t f32_bytes);

void feed_evaluation(const Dataset& dataset, std::int64_t first, const device::TensorView& inputs,
                     const device::TensorView& targets, std::size_t f32_bytes);

}  // namespace shardrun::data
