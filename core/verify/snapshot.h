#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/mesh/placement.h"
#include "core/runtime/executor.h"

namespace shardrun::verify {

/// When in a step a snapshot is taken.
enum class Moment : std::uint8_t {
  begin,       ///< parameters, optimizer's states, fields: what the step starts from
  gradients,   ///< loss and gradients of the whole batch, before the update
  end,         ///< what it leaves: as `begin`, and the gradient's norm
  evaluation,  ///< the loss over the validation part, with the parameters of `end`
};

[[nodiscard]] const char* to_string(Moment moment) noexcept;
[[nodiscard]] bool belongs_to(graph::StateKind kind, Moment moment) noexcept;

/// What one rank holds of one state. Elements are doubles, which every f32 is exactly.
struct Part {
  mesh::Box box;
  std::vector<double> values;  ///< row-major, as the box has them
};

/// What one rank holds at a moment.
struct Snapshot {
  std::vector<std::optional<Part>> parts;  ///< by state; nothing for those that do not belong to the moment
};

[[nodiscard]] Snapshot take_snapshot(const graph::Graph& graph, const runtime::Executor& executor, Moment moment);

/// The file that holds a rank's snapshot of a step (from 0).
[[nodiscard]] std::filesystem::path snapshot_path(const std::filesystem::path& folder, std::int64_t step, Moment moment,
                                                  std::int64_t rank);

/// What a rank calls: its snapshot as a safetensors file, where in its metadata each tensor has the place of its part
/// and the whole's shape. Throws Error{io}.
void write_snapshot(const std::filesystem::path& folder, std::int64_t step, Moment moment, std::int64_t rank,
                    const graph::Graph& graph, const runtime::Executor& executor);

/// Throws Error{io} where there is no such file, Error{data} where it is not of this graph.
[[nodiscard]] Snapshot read_snapshot(const std::filesystem::path& folder, std::int64_t step, Moment moment,
                                     std::int64_t rank, const graph::Graph& graph);

}  // namespace shardrun::verify
