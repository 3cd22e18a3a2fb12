#pragma once

#include <cstdint>
#include <filesystem>

#include "core/checkpoint/safetensors.h"
#include "core/graph/graph.h"
#include "core/job/job.h"
#include "core/metrics/rundir.h"
#include "core/runtime/executor.h"

namespace shardrun::checkpoint {

// The state that an iterated job starts from: [iterate] from, or the model's own. Its file is one that a run wrote:
// float32 tensors of global shapes, and in the metadata how many steps had been done.

/// What tells the file from others: all processes of a job must find the same. Both are 0 and "" without a file.
struct SavedState {
  std::string fingerprint;  ///< files::SteadyFile
  std::int64_t steps = 0;   ///< that had been done

  bool operator==(const SavedState&) const = default;
};

/// Of a state after so many steps.
[[nodiscard]] Metadata describe_state(std::int64_t steps);

/// The file that [iterate] from names, itself or by its folder; "" where it names none.
[[nodiscard]] std::filesystem::path saved_state_file(const job::Job& job);

/// Steps that are done in the state that the job starts from: 0 for the model's own. Throws Error{job} with the
/// setting's place where the file cannot be read, and where its steps and the job's are more than 10^15 together.
[[nodiscard]] std::int64_t first_step(const job::Job& job);
/// Steps that will have been done at the job's end, of either task. Throws likewise.
[[nodiscard]] std::int64_t last_step(const job::Job& job);

/// Compares the file with the model's fields. Throws Error{job} for one that is missing, of another shape or type, or
/// that the model does not have; and as first_step().
SavedState check_saved_state(const job::Job& job, const graph::Graph& graph);

/// Every state's first values; fields those of the file, where the job names one: each rank reads its parts. Returns
/// what it has read, and throws as check_saved_state(), and Error{io} where the file changed meanwhile.
SavedState initialize_states(const job::Job& job, const graph::Graph& graph, runtime::Executor& executor);

/// What the job leaves of an earlier run in its own folder.
[[nodiscard]] metrics::Kept kept_of(const job::Job& job);

}  // namespace shardrun::checkpoint
