#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph/graph.h"

namespace shardrun::partition {

using BufferId = std::int32_t;

/// Whose share of a rank's memory a buffer counts towards.
enum class Category : std::uint8_t { parameters, gradients, optimizer, activations, communication, scratch };

/// A tensor's place in the arena.
struct Buffer {
  std::string name;
  graph::TensorType type;
  Category category = Category::activations;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  ///< from the beginning of the arena
  std::int32_t first = 0;    ///< instructions between which a transient keeps its contents; states live always
  std::int32_t last = 0;
};

/// Whether an instruction adds to what its first result's buffer holds.
enum class Accumulate : std::uint8_t {
  never,
  after_first,  ///< only from the second microbatch of a step on
  always,
};

struct Instruction {
  const graph::Op* op = nullptr;
  std::string name;
  graph::Attributes attributes;
  std::vector<BufferId> inputs;
  std::vector<BufferId> outputs;
  Accumulate accumulate = Accumulate::never;
  graph::Phase phase = graph::Phase::forward;
  std::int32_t layer = -1;
  std::uint64_t scratch_bytes = 0;
  std::uint64_t scratch_offset = 0;
  std::int64_t flops = 0;
};

struct Port {
  std::string name;
  BufferId buffer = -1;
};

/// One function on one rank: a flat list of instructions over buffers whose offsets are fixed.
/// Buffer ids below the number of states are the states.
struct Program {
  std::string function;
  std::int64_t rows = 0;
  std::vector<Buffer> buffers;
  std::vector<Instruction> instructions;
  std::vector<Port> inputs;
  std::vector<Port> outputs;
  std::uint64_t transient_bytes = 0;  ///< what the function needs beside the states
  std::uint64_t least_bytes = 0;      ///< the most that lives at once: no layout needs less
  std::int32_t peak_instruction = 0;  ///< where that is
};

/// Bytes of one rank by category. Transients are counted in the function that needs most, at its busiest instruction;
/// what the layout needs beyond the bytes that live there counts as activations.
struct MemoryUse {
  std::uint64_t parameters = 0;
  std::uint64_t gradients = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t activations = 0;
  std::uint64_t communication = 0;
  std::uint64_t scratch = 0;
  std::uint64_t peak = 0;  ///< their sum: every byte of every page that a run touches
};

/// All programs of one rank over one arena: states first, then room for the largest transient.
struct Programs {
  std::string device;
  int threads = 1;
  std::vector<Buffer> states;  ///< in the order of Graph::states
  std::vector<Program> programs;
  std::uint64_t arena_bytes = 0;
  MemoryUse memory;

  /// Throws Error{internal} when there is none.
  [[nodiscard]] const Program& find(std::string_view function, std::int64_t rows) const;
};

[[nodiscard]] const char* to_string(Category category) noexcept;
[[nodiscard]] std::string to_string(const Programs& programs);

}  // namespace shardrun::partition
