#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/contents.h"
#include "core/checkpoint/open_checkpoint.h"
#include "core/data/dataset.h"
#include "core/graph/graph.h"
#include "core/job/job.h"
#include "core/partition/partition.h"
#include "core/runtime/executor.h"
#include "core/workload/model.h"

namespace shardrun::checkpoint {

/// Where a run begins: after so many steps and samples of training data.
struct Position {
  std::int64_t step = 0;
  std::int64_t samples = 0;
  bool evaluated = true;                ///< whether the evaluation that was due after the step has been done
  std::optional<double> loss = {};      ///< of the step
  std::optional<double> val_loss = {};  ///< the last one measured

  bool operator==(const Position&) const = default;
};

/// Samples consumed after so many steps of a run that began there. The batch may be another than before.
[[nodiscard]] std::int64_t samples_after(const job::Job& job, const Position& first, std::int64_t steps) noexcept;

/// The folder of a job's checkpoints.
[[nodiscard]] std::filesystem::path checkpoint_folder(const job::Job& job);

/// The newest checkpoint in a folder that can be read, as far as its manifest and the sizes of its files say.
struct NewestCheckpoint {
  std::filesystem::path path;  ///< empty: there is none
  std::int64_t step = -1;
  std::vector<std::string> damaged;  ///< why newer ones cannot be read
};

[[nodiscard]] NewestCheckpoint newest_checkpoint(const std::filesystem::path& root);

/// Throws Error{job} if the folder of the job's checkpoints has some, damaged ones that were set aside included, and
/// none can be read. A run that begins at the start would replace them one after the other, and they may still be
/// mended. `newest`: of that folder.
void require_readable(const job::Job& job, const NewestCheckpoint& newest);

/// The checkpoint that the job goes on from, by [checkpoint] resume; empty: it begins anew. Adds lines for the person
/// to `notices`. Throws Error{job} with the setting's place if there should be one.
[[nodiscard]] std::filesystem::path checkpoint_to_resume(const job::Job& job, std::vector<std::string>& notices);

/// Throws Error{job} if the job's checkpoint folder has a checkpoint later than `step`, because a run that goes on from
/// `step` would replace it. For step 0, also if the folder has only checkpoints that cannot be read.
void require_newest(const job::Job& job, std::int64_t step);
/// The folder of checkpoints that a run which begins at the start replaces where it may, because it lies in the output
/// folder; "" if the job's checkpoints lie elsewhere.
[[nodiscard]] std::filesystem::path replaced_checkpoints(const job::Job& job);

/// The facts of a job that a run which goes on must share. The manifest has them.
/// `model`: its section of the job, or an engine's.
[[nodiscard]] RunIdentity identity_of(const job::Job& job, std::string model, const data::Dataset* dataset);

/// Compares a checkpoint with the job that is to go on from it. Throws Error{job} with both values if a fact differs
/// that must be the same: model, data, seed, states or their shapes. Returns a line for each difference that is
/// allowed: options of the model that leave its parameters as they are, and states of another strategy's hooks.
[[nodiscard]] std::vector<std::string> check_resumed(const job::Job& job, const OpenCheckpoint& checkpoint,
                                                     const RunIdentity& run, const graph::Graph& graph,
                                                     const partition::Partition& partition);
/// The same for tensors that ranks hold in parts of their own choice: an engine's states.
[[nodiscard]] std::vector<std::string> check_resumed(const job::Job& job, const OpenCheckpoint& checkpoint,
                                                     const RunIdentity& run, const std::vector<HeldTensor>& tensors);

/// Gives the states of this rank the values of the checkpoint. REQUIRES: check_resumed() has passed. States that the
/// checkpoint lacks keep their values. Throws as OpenCheckpoint::read.
void load_states(const OpenCheckpoint& checkpoint, const graph::Graph& graph, const partition::Partition& partition,
                 const runtime::Executor& executor, std::int64_t rank);
void load_states(const OpenCheckpoint& checkpoint, const std::vector<HeldTensor>& tensors,
                 const runtime::Executor& executor, std::int64_t rank);

}  // namespace shardrun::checkpoint
