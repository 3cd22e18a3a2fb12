#pragma once

#include <cstdint>

#include "core/data/dataset.h"
#include "core/device/host_tensor.h"

namespace shardrun::data {

// Writes samples to a function's inputs, whole or this rank's parts. `first`: the global sample of the whole's first
// row. `host`: of the inputs' device. On the cpu device, parts by rows allocate nothing.

void feed_training(const Dataset& dataset, std::uint64_t seed, std::int64_t first, const device::HostAccess& host,
                   const device::TensorView& inputs, const device::TensorView& targets);

void feed_evaluation(const Dataset& dataset, std::int64_t first, const device::HostAccess& host,
                     const device::TensorView& inputs, const device::TensorView& targets);

}  // namespace shardrun::data
