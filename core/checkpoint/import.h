#pragma once

#include <cstdint>
#include <filesystem>

#include "core/checkpoint/manifest.h"
#include "core/checkpoint/tensor_source.h"
#include "core/device/device.h"
#include "core/graph/graph.h"

namespace shardrun::checkpoint {

/// Writes a checkpoint with a source's parameters, fields and optimizer states. Optimizer states that the source lacks
/// get their initial values. Hook states are left out, so a run initializes them. `described`: the manifest without its
/// files and tensors. Returns the checkpoint's folder in `root`. Throws Error{io}; Error{data} for differences of
/// names, shapes and types (all are listed), for numbers that are not finite, or if `root` is a run's folder with
/// checkpoints; Error{usage} if `root` has a checkpoint of this or a later step, or an unfinished one that the source
/// reads.
[[nodiscard]] std::filesystem::path import_checkpoint(const TensorSource& source, const graph::Graph& graph,
                                                      const device::Device& device, Manifest described,
                                                      const std::filesystem::path& root);

}  // namespace shardrun::checkpoint
