#pragma once

#include <cstdint>
#include <functional>

#include "core/data/dataset.h"
#include "core/device/host_tensor.h"

namespace shardrun::data {

// Writes samples to a function's inputs, whole or this rank's parts. `first`: the global sample of the whole's first
// row. `host`: of the inputs' device. On the cpu device, parts by rows allocate nothing.

void feed_training(const Dataset& dataset, std::uint64_t seed, std::int64_t first, const device::HostAccess& host,
                   const device::TensorView& inputs, const device::TensorView& targets);

void feed_evaluation(const Dataset& dataset, std::int64_t first, const device::HostAccess& host,
                     const device::TensorView& inputs, const device::TensorView& targets);

/// `fill(row, rows)` writes the rows of a view, of which the first is that row of the whole input.
void feed_inputs(const device::HostAccess& host, const device::TensorView& inputs,
                 const std::function<void(std::int64_t row, const device::TensorView& rows)>& fill);

}  // namespace shardrun::data
