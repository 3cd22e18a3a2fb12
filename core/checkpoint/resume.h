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

/// Where a run starts: the steps and samples of training data done before it.
struct Position {
  std::int64_t step = 0;
  std::int64_t samples = 0;
  bool evaluated = true;                ///< whether the evaluation due after the step has been done
  std::optional<double> loss = {};      ///< the loss of the step
  std::optional<double> val_loss = {};  ///< the last measured validation loss

  bool operator==(const Position&) const = default;
};

/// Samples of training data consumed after `steps` steps of a run that starts at `first`. The job's batch size can
/// differ from that of earlier steps.
[[nodiscard]] std::int64_t samples_after(const job::Job& job, const Position& first, std::int64_t steps) noexcept;

/// The folder of a job's checkpoints.
[[nodiscard]] std::filesystem::path checkpoint_folder(const job::Job& job);

/// The newest checkpoint in a folder whose manifest is valid and whose files have the right sizes.
struct NewestCheckpoint {
  std::filesystem::path path;  ///< empty: there is none
  std::int64_t step = -1;
  std::vector<std::string> damaged;  ///< for each newer checkpoint, why it cannot be read
};

[[nodiscard]] NewestCheckpoint newest_checkpoint(const std::filesystem::path& root);

/// Throws Error{job} if the folder of the job's checkpoints has checkpoints (also ones that set_aside() renamed), but
/// `newest` says that none can be read. A run from the start would replace them, although the user could repair them.
void require_readable(const job::Job& job, const NewestCheckpoint& newest);

/// The checkpoint from which the job continues, according to [checkpoint] resume; empty if the job starts from the
/// beginning. Adds notes for the user to `notices`. Throws Error{job} if the setting names no checkpoint, or if the
/// folder has checkpoints of which none can be read.
[[nodiscard]] std::filesystem::path checkpoint_to_resume(const job::Job& job, std::vector<std::string>& notices);

/// Throws Error{job} if the job's folder has a checkpoint of a step after `step`, because a run from `step` would
/// replace it. For step 0, also throws if the folder has only checkpoints that cannot be read.
void require_newest(const job::Job& job, std::int64_t step);
/// The folder of checkpoints inside of the output folder, which a run from the start may replace; "" if the job's
/// checkpoints are elsewhere.
[[nodiscard]] std::filesystem::path replaced_checkpoints(const job::Job& job);

/// The identity of the job's run. `model`: the text of the job's section [model], or that of its engine. `dataset`:
/// null if the job has no data.
[[nodiscard]] RunIdentity identity_of(const job::Job& job, std::string model, const data::Dataset* dataset);

/// Compares a checkpoint with the job that will continue from it. Throws Error{job}, with both values, if states, their
/// shapes or a field of RunIdentity differ. Returns a line for each allowed difference: model options that leave the
/// parameters unchanged; with --force-data, the data, tokenizer, split and seed; hook states of another strategy.
[[nodiscard]] std::vector<std::string> check_resumed(const job::Job& job, const OpenCheckpoint& checkpoint,
                                                     const RunIdentity& run, const graph::Graph& graph,
                                                     const partition::Partition& partition);
/// Does the same for the states of an engine, which itself chooses the part that each rank holds.
[[nodiscard]] std::vector<std::string> check_resumed(const job::Job& job, const OpenCheckpoint& checkpoint,
                                                     const RunIdentity& run, const std::vector<HeldTensor>& tensors);

/// Loads the states of `rank` from the checkpoint. Hook states that the checkpoint lacks keep their values. Throws as
/// OpenCheckpoint::read() does. REQUIRES: check_resumed() has not thrown.
void load_states(const OpenCheckpoint& checkpoint, const graph::Graph& graph, const partition::Partition& partition,
                 const runtime::Executor& executor, std::int64_t rank);
void load_states(const OpenCheckpoint& checkpoint, const std::vector<HeldTensor>& tensors,
                 const runtime::Executor& executor, std::int64_t rank);

}  // namespace shardrun::checkpoint
