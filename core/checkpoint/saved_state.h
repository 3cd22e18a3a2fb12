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

// The state from which an iterated job starts is given by [iterate] from. Without it, the model initializes its state.
// The setting names either a file that a run wrote, with float32 tensors of global shapes and the number of steps in
// its metadata, or arrays of any numeric type, one .npy file per field.

/// Describes the saved state that was read. If there is none, `fingerprint` is "" and `steps` is 0.
struct SavedState {
  std::string fingerprint;  ///< identifies the files; all processes of a job must get the same one
  std::int64_t steps = 0;   ///< steps done

  bool operator==(const SavedState&) const = default;
};

/// The metadata of a file with the state after this number of steps.
[[nodiscard]] Metadata describe_state(std::int64_t steps);

/// The files that [iterate] from names directly or by their folder. Empty without the setting.
[[nodiscard]] std::vector<std::filesystem::path> saved_state_files(const job::Job& job);

/// Throws Error{data} if an array of [iterate] from has a number that is NaN, infinite or too large for float32, and
/// names the first one; Error{io} if an array changes meanwhile. Reads the arrays once, with this number of threads.
void check_saved_numbers(const job::Job& job, int threads);

/// The number of steps in the metadata of a state file; 0 for a file of another program. Throws Error{data} if the
/// number is not valid.
[[nodiscard]] std::int64_t step_of_state(const SafetensorsFile& file);

/// The number of steps done before the job starts: those of [iterate] from, or 0 without it. Throws Error{job} if the
/// file cannot be read, or if its steps and the job's, or the samples in them, exceed 10^15 together.
[[nodiscard]] std::int64_t first_step(const job::Job& job);
/// The number of steps done at the end of the job, in training and in iterating. Throws as first_step() does.
[[nodiscard]] std::int64_t last_step(const job::Job& job);

/// Compares the files of [iterate] from with the model's fields. Throws Error{job} if a field is missing, has another
/// shape or type, or does not exist in the model. Also throws as first_step() does.
SavedState check_saved_state(const job::Job& job, const graph::Graph& graph);

/// Sets the initial values of every state. Fields are read from the files of [iterate] from, if the job has it; each
/// rank reads its own parts. Returns what was read. Throws as check_saved_state() does, and Error{io} if a file changes
/// during the call.
SavedState initialize_states(const job::Job& job, const graph::Graph& graph, runtime::Executor& executor);

/// The path of the job's result file, which is in the folder [job] output.
[[nodiscard]] std::filesystem::path result_path(const job::Job& job);

/// Which files of an earlier run stay in the job's output folder. `resumed`: the checkpoint from which the run
/// continues; null: it starts from the beginning.
[[nodiscard]] metrics::Kept kept_of(const job::Job& job, const OpenCheckpoint* resumed = nullptr);

}  // namespace shardrun::checkpoint
