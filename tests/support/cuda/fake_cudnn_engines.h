#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "tests/support/cuda/fake_cudnn_descriptors.h"

/// Engines of the fake cuDNN (fake_cudnn.h), and the workspace that they need.
namespace shardrun::test::fake_cudnn {

[[nodiscard]] std::span<const Reference> operations_of(const Descriptor& graph);
/// The tensors of a graph that are in memory (not virtual), by uid.
[[nodiscard]] std::map<std::int64_t, Tensor> tensors_in_memory(const Descriptor& graph);

/// An engine of the fake, and the properties that it reports.
struct Engine {
  std::int64_t number;
  std::vector<cudnnBackendNumericalNote_t> notes;
  bool is_reproducible = true;
  unsigned dropped_bits = 0;   ///< the number of bits that operands lose by rounding
  std::int64_t workspace = 0;  ///< bytes; 0: what the graph needs
};

[[nodiscard]] std::vector<Engine> engines_of(const Descriptor& graph);
/// The engine that a descriptor names. Throws Refusal if there is none.
[[nodiscard]] Engine engine_of(const Descriptor& descriptor);

/// A graph, and the engine that computes it.
struct Plan {
  /// Throws Refusal if there is no such engine. The descriptor must outlive the plan.
  explicit Plan(const Descriptor& plan);

  [[nodiscard]] std::int64_t workspace() const;

  const Descriptor& graph;
  Engine engine;
};

}  // namespace shardrun::test::fake_cudnn
