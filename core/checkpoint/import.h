#pragma once

#include <cstdint>
#include <filesystem>

#include "core/checkpoint/manifest.h"
#include "core/checkpoint/tensor_source.h"
#include "core/device/device.h"
#include "core/graph/graph.h"

namespace shardrun::checkpoint {

/// Writes a checkpoint with the parameters and optimizer states of a source. Optimizer states that the source lacks get
/// their initial values. Hook states are left out, so a run initializes them. `described`: the manifest's step,
/// samples, run, and fields that are not compared. Returns the checkpoint's folder in `root`. Throws Error{data} with
/// every difference of names, shapes and types; Error{io}; Error{usage} if `root` has a checkpoint of this or
/// a later step.
[[nodiscard]] std::filesystem::path import_checkpoint(const TensorSource& source, const graph::Graph& graph,
                                                      const device::Device& device, Manifest described,
                                                      const std::filesystem::path& root);

}  // namespace shardrun::checkpoint
