#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/graph/graph.h"
#include "core/mesh/placement.h"
#include "core/runtime/executor.h"

namespace shardrun::verify {

/// The moment in a step at which a snapshot is taken.
enum class Moment : std::uint8_t {
  begin,       ///< parameters, optimizer states, fields: the step's inputs
  gradients,   ///< loss and gradients of the whole batch, before the update
  end,         ///< the step's results: as `begin`, and the gradient norm
  evaluation,  ///< the loss over the validation part, with the parameters of `end`
};

[[nodiscard]] const char* to_string(Moment moment) noexcept;
[[nodiscard]] bool belongs_to(graph::StateKind kind, Moment moment) noexcept;

/// One rank's part of one state. Elements are doubles, which represent every f32 exactly.
struct Part {
  mesh::Box box;
  std::vector<double> values;  ///< row-major in the box
};

/// One rank's parts of all states at a moment.
struct Snapshot {
  IdVector<graph::StateId, std::optional<Part>> parts;  ///< nothing for states that do not belong to the moment
};

[[nodiscard]] Snapshot take_snapshot(const graph::Graph& graph, const runtime::Executor& executor, Moment moment);

/// The file that holds a rank's snapshot of a step (from 0).
[[nodiscard]] std::filesystem::path snapshot_path(const std::filesystem::path& folder, std::int64_t step, Moment moment,
                                                  std::int64_t rank);

/// Where a rank's part of a state lies, and the shape of the whole. Empty: as the executor and the graph say.
using PlaceOf = std::function<std::pair<mesh::Box, std::vector<std::int64_t>>(graph::StateId state)>;

/// Writes a rank's snapshot as a safetensors file. Its metadata has the place of each part and the whole shape. Throws
/// Error{io}.
void write_snapshot(const std::filesystem::path& folder, std::int64_t step, Moment moment, std::int64_t rank,
                    const graph::Graph& graph, const runtime::Executor& executor, const PlaceOf& place_of = {});

/// Writes the predictions of a batch, which the first rank has whole, as its snapshot at the end of a step; other ranks
/// have none. `program`: of the function `forward`. `name`: of the reference's state. Throws Error{io}.
void write_predictions(const std::filesystem::path& folder, std::int64_t step, std::int64_t rank,
                       const runtime::Executor& executor, std::size_t program, const std::string& name);

/// A state that the file lacks has no part. Throws Error{io} if there is no such file, Error{data} if it is not of this
/// graph.
[[nodiscard]] Snapshot read_snapshot(const std::filesystem::path& folder, std::int64_t step, Moment moment,
                                     std::int64_t rank, const graph::Graph& graph);

}  // namespace shardrun::verify
