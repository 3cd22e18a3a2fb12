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

// The state from which an iterated job starts: that of [iterate] from, or the model's own. The former is a file that a
// run wrote, with float32 tensors of global shapes and the number of steps done in the metadata; or it is arrays of any
// numeric type, one .npy file for each field.

/// The state that was read. `fingerprint` identifies its files: all processes of a job must get the same. If there is
/// no saved state, it is "" and `steps` is 0.
struct SavedState {
  std::string fingerprint;  ///< of files::SteadyFile
  std::int64_t steps = 0;   ///< steps done

  bool operator==(const SavedState&) const = default;
};

/// The metadata of a state after this number of steps.
[[nodiscard]] Metadata describe_state(std::int64_t steps);

/// The files of [iterate] from, given directly or by their folder; empty without the setting.
[[nodiscard]] std::vector<std::filesystem::path> saved_state_files(const job::Job& job);

/// Throws Error{data}, which names the first number of an array that is NaN, infinite or too large for float32. Reads
/// all numbers once.
void check_saved_numbers(const job::Job& job, int threads);

/// The number of steps done in a state; 0 for a file of another program. Throws Error{data} if the metadata lacks a
/// valid number of steps.
[[nodiscard]] std::int64_t step_of_state(const SafetensorsFile& file);

/// The number of steps done in the state from which the job starts; 0 for the model's own. Throws Error{job} with the
/// setting's place if the file cannot be read, or if its steps and the job's together exceed 10^15.
[[nodiscard]] std::int64_t first_step(const job::Job& job);
/// The number of steps done at the job's end, for training and iterating. Throws as first_step() does.
[[nodiscard]] std::int64_t last_step(const job::Job& job);

/// Compares the files with the model's fields. Throws Error{job} if a field is missing, has another shape or type, or
/// does not exist in the model; and as first_step() does.
SavedState check_saved_state(const job::Job& job, const graph::Graph& graph);

/// Gives every state its first values. Fields get theirs from the job's files, if it names any; each rank reads its
/// parts. Returns the saved state that it has read. Throws as check_saved_state() does, and Error{io} if a file changed
/// meanwhile.
SavedState initialize_states(const job::Job& job, const graph::Graph& graph, runtime::Executor& executor);

/// The path of the job's result file, in [job] output.
[[nodiscard]] std::filesystem::path result_path(const job::Job& job);

/// The files of an earlier run that are kept in the job's folder. `resumed`: the checkpoint from which the run
/// continues; null: none.
[[nodiscard]] metrics::Kept kept_of(const job::Job& job, const OpenCheckpoint* resumed = nullptr);

}  // namespace shardrun::checkpoint
