#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/conformance/kinds.h"
#include "core/conformance/peer.h"
#include "core/workload/program.h"
#include "plugins/loader/model.h"

namespace shardrun::conformance {

/// The number of processes that call a model in the same way, like the ranks of a job.
constexpr std::uint32_t model_members = 2;

/// A job that a model makes a graph for, small enough to be computed often.
struct ModelJob {
  std::string name;  ///< such as "trained on tokens" or "iterated"
  bool trains = true;
  workload::ModelSettings settings;
  std::int64_t batch = 5;  ///< samples per step; more than one are divided into two microbatches
};

/// The graph of the job, with all functions that a run calls for microbatches, evaluations and predictions.
/// Throws Error{job} if the model refuses the job, and Failure if the model breaks a rule.
[[nodiscard]] graph::Graph build_graph(const plugins::Model& model, const ModelJob& job);
/// The rows of each call in a step, or in an evaluation; empty for a job that is iterated.
[[nodiscard]] std::vector<std::int64_t> microbatch_rows_of(const ModelJob& job);
[[nodiscard]] std::vector<std::int64_t> evaluation_rows_of(const ModelJob& job);
/// Samples that an iteration reads; 0 for a job without data, and for training.
[[nodiscard]] std::int64_t iterated_rows_of(const ModelJob& job);

/// A process of a check, as a rank with a model.
class ModelMember final : public Peer {
 public:
  /// `settings`: "key=value" for options of the model in all jobs, and for sizes of data (is_data_setting()).
  ModelMember(Store& store, const plugins::Directories& directories, std::string model, std::uint32_t rank,
              std::vector<std::string> settings);

  /// The model under test. The first call opens it.
  [[nodiscard]] const plugins::Model& model();
  /// Opens another instance of the model.
  [[nodiscard]] plugins::Model open_another() const;
  [[nodiscard]] std::filesystem::path file() const;
  [[nodiscard]] const plugins::Directories& directories() const noexcept { return directories_; }

  /// One job for each kind of data that the model takes, and one that is iterated without data. Training jobs are
  /// repeated with a batch of one sample. All are repeated with all sizes 1 if the model accepts this, so that sizes do
  /// not tell dimensions apart. Options without a default get accepted values. Throws Failure if there are none.
  [[nodiscard]] const std::vector<ModelJob>& jobs();

 private:
  void add_jobs(ModelJob job, std::uint32_t data, const OptionValues& given);

  const plugins::Directories& directories_;
  std::string name_;
  std::vector<std::string> settings_;
  std::optional<plugins::Model> model_;
  std::vector<ModelJob> jobs_;
};

using ModelCase = CaseOf<ModelMember, model_members>;

// Each of these functions adds the cases of a source file other than model_cases.cpp.
void add_op_cases(std::vector<ModelCase>& cases);
void add_training_cases(std::vector<ModelCase>& cases);
void add_decoding_cases(std::vector<ModelCase>& cases);

}  // namespace shardrun::conformance
