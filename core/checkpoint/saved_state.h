#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/checkpoint/open_checkpoint.h"
#include "core/checkpoint/safetensors.h"
#include "core/graph/graph.h"
#include "core/job/job.h"
#include "core/metrics/run_files.h"
#include "core/runtime/executor.h"

namespace shardrun::checkpoint {

// The state that an iterated job starts from: what [iterate] from names, or the model's own state. That is a file that
// a run wrote, with float32 tensors of global shapes and the number of steps done in the metadata; or arrays of any
// numbers, a .npy file for each field.

/// Identifies the files: all processes of a job must find the same. Without one: 0 and "".
struct SavedState {
  std::string fingerprint;  ///< of files::SteadyFile
  std::int64_t steps = 0;   ///< steps done

  bool operator==(const SavedState&) const = default;
};

/// The metadata of a state after so many steps.
[[nodiscard]] Metadata describe_state(std::int64_t steps);

/// The files of [iterate] from, given directly or by their folder; none without the setting.
[[nodiscard]] std::vector<std::filesystem::path> saved_state_files(const job::Job& job);

/// Throws Error{data} for the first number of an array that is NaN, infinite or too large for float32. Reads all
/// numbers once.
void check_saved_numbers(const job::Job& job, int threads);

/// Steps done in a state; 0 for a file of another program. Throws Error{data} if the metadata has no number of steps.
[[nodiscard]] std::int64_t step_of_state(const SafetensorsFile& file);

/// Steps done in the state that the job starts from; 0 for the model's own. Throws Error{job} with the setting's place
/// if the file cannot be read, or if its steps and the job's together exceed 10^15.
[[nodiscard]] std::int64_t first_step(const job::Job& job);
/// Steps done at the job's end, for either task. Throws likewise.
[[nodiscard]] std::int64_t last_step(const job::Job& job);

/// Compares the files with the model's fields. Throws Error{job} for a field that is missing, has another shape or
/// type, or does not exist in the model; and as first_step().
SavedState check_saved_state(const job::Job& job, const graph::Graph& graph);

/// Gives every state its first values. If the job names files, fields get their values from them; each rank reads its
/// parts. Returns the saved state that it has read. Throws as check_saved_state(), and Error{io} if a file changed
/// meanwhile.
SavedState initialize_states(const job::Job& job, const graph::Graph& graph, runtime::Executor& executor);

/// The path of the job's result file, in [job] output.
[[nodiscard]] std::filesystem::path result_path(const job::Job& job);

/// Files of an earlier run that stay in the job's folder.
/// `resumed`: the checkpoint that the run goes on from; null: none.
[[nodiscard]] metrics::Kept kept_of(const job::Job& job, const OpenCheckpoint* resumed = nullptr);

}  // namespace shardrun::checkpoint
