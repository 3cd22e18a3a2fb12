#pragma once

#include <cstdint>
#include <functional>

#include "core/data/dataset.h"
#include "core/device/host_tensor.h"

namespace shardrun::data {

// Write samples to a function's inputs, whole or only this rank's parts. `first`: the global number of the sample in
// the whole input's first row. `host`: access to the inputs' device. On the cpu device, parts that consist of whole
// rows need no allocation.

void feed_training(const Dataset& dataset, std::uint64_t seed, std::int64_t first, const device::HostAccess& host,
                   const device::TensorView& inputs, const device::TensorView& targets);

void feed_evaluation(const Dataset& dataset, std::int64_t first, const device::HostAccess& host,
                     const device::TensorView& inputs, const device::TensorView& targets);

/// `fill(row, rows)` must write the rows of a view whose first row is row `row` of the whole input.
void feed_inputs(const device::HostAccess& host, const device::TensorView& inputs,
                 const std::function<void(std::int64_t row, const device::TensorView& rows)>& fill);

}  // namespace shardrun::data
