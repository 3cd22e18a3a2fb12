#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "tests/support/cuda/fake_cudnn_descriptors.h"

/// Engines of the fake of cuDNN (fake_cudnn.h), and the workspace that they want.
namespace shardrun::test::fake_cudnn {

[[nodiscard]] std::span<const Reference> operations_of(const Descriptor& graph);
/// Tensors of a graph that are in memory, by number.
[[nodiscard]] std::map<std::int64_t, Tensor> tensors_in_memory(const Descriptor& graph);

/// An engine of the fake, and what it says about itself.
struct Engine {
  std::int64_t number;
  std::vector<cudnnBackendNumericalNote_t> notes;
  bool is_reproducible = true;
  unsigned dropped_bits = 0;   ///< of operands, to which they are rounded
  std::int64_t workspace = 0;  ///< instead of the graph's
};

[[nodiscard]] std::vector<Engine> engines_of(const Descriptor& graph);
/// The one that a descriptor of an engine names. Throws Refusal if there is none.
[[nodiscard]] Engine engine_of(const Descriptor& descriptor);

/// A graph, and the engine that computes it.
struct Plan {
  /// Throws Refusal if there is no such engine. The descriptor outlives it.
  explicit Plan(const Descriptor& plan);

  [[nodiscard]] std::int64_t workspace() const;

  const Descriptor& graph;
  Engine engine;
};

}  // namespace shardrun::test::fake_cudnn
