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

/// Where a run begins: the steps and the samples of training data that are already done.
struct Position {
  std::int64_t step = 0;
  std::int64_t samples = 0;
  bool evaluated = true;                ///< the evaluation that was due after the step has been done
  std::optional<double> loss = {};      ///< loss of the step
  std::optional<double> val_loss = {};  ///< the last measured validation loss

  bool operator==(const Position&) const = default;
};

/// Samples consumed after `steps` steps of a run that began at `first`. The batch may differ from the earlier run's.
[[nodiscard]] std::int64_t samples_after(const job::Job& job, const Position& first, std::int64_t steps) noexcept;

/// The folder of a job's checkpoints.
[[nodiscard]] std::filesystem::path checkpoint_folder(const job::Job& job);

/// The newest checkpoint in a folder that can be read, judging by its manifest and the sizes of its files.
struct NewestCheckpoint {
  std::filesystem::path path;  ///< empty: there is none
  std::int64_t step = -1;
  std::vector<std::string> damaged;  ///< why newer checkpoints cannot be read
};

[[nodiscard]] NewestCheckpoint newest_checkpoint(const std::filesystem::path& root);

/// Throws Error{job} if the folder of the job's checkpoints has some (damaged ones that were set aside count, too) but
/// none can be read. A run from the start would replace them one by one, although they may be repairable. `newest`: the
/// newest one in that folder.
void require_readable(const job::Job& job, const NewestCheckpoint& newest);

/// The checkpoint from which the job continues, by [checkpoint] resume; empty: it begins anew. Adds lines for people to
/// `notices`. If there must be one and is not, throws Error{job} with the setting's place.
[[nodiscard]] std::filesystem::path checkpoint_to_resume(const job::Job& job, std::vector<std::string>& notices);

/// Throws Error{job} if the job's checkpoint folder has a checkpoint later than `step`, because a run that continues
/// from `step` would replace it. For step 0, it also throws if the folder has only checkpoints that cannot be read.
void require_newest(const job::Job& job, std::int64_t step);
/// The folder of checkpoints that a run from the start may replace, because it lies in the output folder; "" if the
/// job's checkpoints lie elsewhere.
[[nodiscard]] std::filesystem::path replaced_checkpoints(const job::Job& job);

/// The facts of a job that a resumed run must share with the manifest. `model`: the model's section of the job, or an
/// engine's.
[[nodiscard]] RunIdentity identity_of(const job::Job& job, std::string model, const data::Dataset* dataset);

/// Compares a checkpoint with the job that is to continue from it. Throws Error{job}, with both values, if they differ
/// in something that must be the same: model, data, seed, states or their shapes. Returns a line for each difference
/// that is allowed: options of the model that leave its parameters unchanged, and states of another strategy's hooks.
[[nodiscard]] std::vector<std::string> check_resumed(const job::Job& job, const OpenCheckpoint& checkpoint,
                                                     const RunIdentity& run, const graph::Graph& graph,
                                                     const partition::Partition& partition);
/// The same for an engine's states, which ranks hold in parts of the engine's choice.
[[nodiscard]] std::vector<std::string> check_resumed(const job::Job& job, const OpenCheckpoint& checkpoint,
                                                     const RunIdentity& run, const std::vector<HeldTensor>& tensors);

/// Gives the states of this rank the values from the checkpoint. States that the checkpoint lacks keep their values.
/// Throws as OpenCheckpoint::read does. REQUIRES: check_resumed() has passed.
void load_states(const OpenCheckpoint& checkpoint, const graph::Graph& graph, const partition::Partition& partition,
                 const runtime::Executor& executor, std::int64_t rank);
void load_states(const OpenCheckpoint& checkpoint, const std::vector<HeldTensor>& tensors,
                 const runtime::Executor& executor, std::int64_t rank);

}  // namespace shardrun::checkpoint
