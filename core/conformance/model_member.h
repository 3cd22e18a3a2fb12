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

/// Processes that ask a model the same, like the ranks of a job.
constexpr std::uint32_t model_members = 2;

/// A job for a model to write, small enough to be computed often.
struct ModelJob {
  std::string name;  ///< "trained on tokens", "iterated"
  bool trains = true;
  workload::ModelSettings settings;
  std::int64_t batch = 5;  ///< samples of a step; more than one in two microbatches
};

/// The job's graph with every function that a run calls: several microbatches, evaluation, predictions. A refusal throws
/// Error{job}. Throws Failure where the model breaks a rule.
[[nodiscard]] graph::Graph build_graph(const plugins::Model& model, const ModelJob& job);
/// Rows of the calls of a step, and of an evaluation; none for one that is iterated.
[[nodiscard]] std::vector<std::int64_t> microbatch_rows_of(const ModelJob& job);
[[nodiscard]] std::vector<std::int64_t> evaluation_rows_of(const ModelJob& job);
/// Samples of an iteration; 0 for one without data, and for training.
[[nodiscard]] std::int64_t iterated_rows_of(const ModelJob& job);

/// This process as a rank with a model.
class ModelMember final : public Peer {
 public:
  /// `settings`: "key=value" for options of the model in all jobs, and for sizes of data (is_data_setting).
  ModelMember(Store& store, const plugins::Directories& directories, std::string model, std::uint32_t rank,
              std::vector<std::string> settings);

  /// The first call opens it.
  [[nodiscard]] const plugins::Model& model();
  /// Opens another instance.
  [[nodiscard]] plugins::Model open_another() const;
  [[nodiscard]] std::filesystem::path file() const;
  [[nodiscard]] const plugins::Directories& directories() const noexcept { return directories_; }

  /// A job for each kind of data that the model is trained on, and one that is iterated. Options that have no default
  /// get a value that the model accepts. Throws Failure where it accepts none. Each comes again with a batch of one
  /// sample, and with every size 1 where the model accepts that: then dimensions cannot be told apart by their sizes.
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

// Those of other files than model_cases.cpp.
void add_op_cases(std::vector<ModelCase>& cases);
void add_training_cases(std::vector<ModelCase>& cases);

}  // namespace shardrun::conformance
