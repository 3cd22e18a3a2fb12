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

/// The number of processes that make the same calls to a model, like the ranks of a job.
constexpr std::uint32_t model_members = 2;

/// A job for a model to write, small enough to be computed often.
struct ModelJob {
  std::string name;  ///< "trained on tokens", "iterated"
  bool trains = true;
  workload::ModelSettings settings;
  std::int64_t batch = 5;  ///< samples per step; if more than one, in two microbatches
};

/// The job's graph with every function that a run calls: those of several microbatches, evaluation, predictions. Throws
/// Error{job} if the model refuses, Failure if it breaks a rule.
[[nodiscard]] graph::Graph build_graph(const plugins::Model& model, const ModelJob& job);
/// The numbers of rows in the calls of a step, and of an evaluation. Empty for a job that is iterated.
[[nodiscard]] std::vector<std::int64_t> microbatch_rows_of(const ModelJob& job);
[[nodiscard]] std::vector<std::int64_t> evaluation_rows_of(const ModelJob& job);
/// The number of samples in an iteration. 0 for a job without data, and for training.
[[nodiscard]] std::int64_t iterated_rows_of(const ModelJob& job);

/// This process as a rank with a model.
class ModelMember final : public Peer {
 public:
  /// `settings`: "key=value" for options of the model in all jobs, and for sizes of data (is_data_setting).
  ModelMember(Store& store, const plugins::Directories& directories, std::string model, std::uint32_t rank,
              std::vector<std::string> settings);

  /// The model. The first call opens it.
  [[nodiscard]] const plugins::Model& model();
  /// Opens another instance.
  [[nodiscard]] plugins::Model open_another() const;
  [[nodiscard]] std::filesystem::path file() const;
  [[nodiscard]] const plugins::Directories& directories() const noexcept { return directories_; }

  /// One job for each kind of data on which the model is trained, and one that is iterated. Options without a default
  /// get a value that the model accepts. Throws Failure if the model accepts none. Each job is repeated with a batch of
  /// one sample and, if the model accepts it, with every size 1: then dimensions cannot be told apart by their sizes.
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

// Each of these functions adds the cases of another file than model_cases.cpp.
void add_op_cases(std::vector<ModelCase>& cases);
void add_training_cases(std::vector<ModelCase>& cases);

}  // namespace shardrun::conformance
