#pragma once

#include <cstdint>
#include <functional>

#include "core/data/dataset.h"
#include "core/device/host_tensor.h"

namespace shardrun::data {

// These functions write samples to the inputs of a function, or to this rank's parts of them. `first`: the global index
// of the sample for the first row of the whole input. `host`: access to the device of the inputs. On the cpu device,
// parts of whole rows need no allocation.

/// Returns the seconds that reading the samples took, without the time for waiting for the device.
double feed_training(const Dataset& dataset, std::uint64_t seed, std::int64_t first, const device::HostAccess& host,
                     const device::TensorView& inputs, const device::TensorView& targets);

void feed_evaluation(const Dataset& dataset, std::int64_t first, const device::HostAccess& host,
                     const device::TensorView& inputs, const device::TensorView& targets);

/// Writes samples to the inputs. `fill(row, rows)` must fill a view whose first row is row `row` of the whole input.
void feed_inputs(const device::HostAccess& host, const device::TensorView& inputs,
                 const std::function<void(std::int64_t row, const device::TensorView& rows)>& fill);

}  // namespace shardrun::data
