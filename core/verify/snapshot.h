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
  begin,       ///< parameters, optimizer states and fields before the step
  gradients,   ///< loss and gradients of the whole batch, before the update
  end,         ///< parameters, optimizer states, fields, metrics and outputs after the step
  evaluation,  ///< loss of the validation data, with the parameters after the step
};

inline constexpr Moment moments[] = {Moment::begin, Moment::gradients, Moment::end, Moment::evaluation};

[[nodiscard]] const char* to_string(Moment moment) noexcept;
[[nodiscard]] bool belongs_to(graph::StateKind kind, Moment moment) noexcept;

/// A rank's part of a state. The elements are doubles, which represent every float32 exactly.
struct Part {
  mesh::Box box;
  std::vector<double> values;  ///< row-major in `box`
};

/// A rank's parts of all states at a moment.
struct Snapshot {
  IdVector<graph::StateId, std::optional<Part>> parts;  ///< nothing for states that are not recorded at this moment
};

[[nodiscard]] Snapshot take_snapshot(const graph::Graph& graph, const runtime::Executor& executor, Moment moment);

/// The file with a rank's snapshot at a moment of a step. Steps count from 0.
[[nodiscard]] std::filesystem::path snapshot_path(const std::filesystem::path& folder, std::int64_t step, Moment moment,
                                                  std::int64_t rank);

/// Returns the box of a rank's part of a state, and the shape of the whole state. If empty, the executor and the graph
/// determine them.
using PlaceOf = std::function<std::pair<mesh::Box, std::vector<std::int64_t>>(graph::StateId state)>;

/// Writes a rank's snapshot as a safetensors file. The metadata has each part's place and the whole state's shape.
/// Throws Error{io}.
void write_snapshot(const std::filesystem::path& folder, std::int64_t step, Moment moment, std::int64_t rank,
                    const graph::Graph& graph, const runtime::Executor& executor, const PlaceOf& place_of = {});

/// Writes a batch's predictions as the first rank's snapshot at the end of a step. The first rank has all of them, so
/// the files of other ranks have no tensors. `program`: a program of the function `forward`. `name`: the state of the
/// reference with which the predictions are compared. Throws Error{io}.
void write_predictions(const std::filesystem::path& folder, std::int64_t step, std::int64_t rank,
                       const runtime::Executor& executor, std::size_t program, const std::string& name);

/// Reads a snapshot. A state that is not in the file has no part. Throws Error{io} if the file does not exist,
/// Error{data} if its tensors do not fit the graph.
[[nodiscard]] Snapshot read_snapshot(const std::filesystem::path& folder, std::int64_t step, Moment moment,
                                     std::int64_t rank, const graph::Graph& graph);

}  // namespace shardrun::verify
