#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/data/tokenizer.h"
#include "core/device/device.h"
#include "core/files/steady_file.h"
#include "core/job/job.h"
#include "core/workload/model.h"

namespace shardrun::data {

/// The data of a job, of any kind. Fills write whole input tensors by global sample index; on the cpu device
/// they allocate nothing. The numbers never change: a changed file is an error. One thread at a time.
class Dataset {
 public:
  virtual ~Dataset() = default;

  [[nodiscard]] virtual workload::DataShape shape() const = 0;
  /// Null without a text.
  [[nodiscard]] virtual const Tokenizer* tokenizer() const noexcept { return nullptr; }
  /// Samples in a whole evaluation; 0 if everything is for training.
  [[nodiscard]] virtual std::int64_t evaluation_samples() const = 0;
  /// Samples in an epoch, which has each once; 0 if samples are drawn with replacement, or there are none.
  [[nodiscard]] virtual std::int64_t epoch_samples() const { return 0; }
  /// Tokens in a sample; 1 for arrays.
  [[nodiscard]] virtual std::int64_t tokens_per_sample() const = 0;
  /// Reads all data once, divided among `threads`. Throws Error{data}, with the setting's place, for a token that the
  /// model does not have, and for a number that is not finite. Called once on each machine, before training.
  virtual void check(int threads) const = 0;
  /// Prepares fills: makes the tokens of texts, in memory that the processes of a host share. Called once on each host,
  /// after check(); the host's other processes call attach_dataset(). Throws Error{io} if a text has changed since it
  /// was opened.
  virtual void load() {}
  /// Bytes of that memory on a host; and how many of them load() will still take.
  [[nodiscard]] virtual std::uint64_t host_bytes() const { return 0; }
  [[nodiscard]] virtual std::uint64_t bytes_to_load() const { return 0; }

  // For each of data_files(). REQUIRES: load() was called, or attach_dataset() made this.

  /// The files that fills read; for texts, the memory that load() made.
  [[nodiscard]] virtual std::vector<const files::SteadyFile*> files() const { return {}; }
  /// "1115394 bytes, hash 9d2c5681a3b0c7f4": identifies the bytes that fills read.
  [[nodiscard]] virtual std::vector<std::string> fingerprints() const;

  /// One line for the person who started the job.
  [[nodiscard]] virtual std::string describe() const = 0;

  // Throw Error{io} if a file was cut short or has changed, Error{data} for a token or label that the model does not
  // have. Same REQUIRES as files().

  /// Fills the rows of the views, which are in host memory, with samples from the global sample `first` on.
  virtual void fill_training(std::uint64_t seed, std::int64_t first, const device::TensorView& inputs,
                             const device::TensorView& targets) const = 0;
  /// `targets`: of data without targets, anything.
  virtual void fill_evaluation(std::int64_t first, const device::TensorView& inputs,
                               const device::TensorView& targets) const = 0;
};

/// The files that [data] names, or, where a model is applied to an array, [infer] from.
[[nodiscard]] std::vector<std::filesystem::path> data_files(const job::Job& job);

/// Whether a model is applied to a stream of records: standard input, a pipe, or a file with several arrays.
[[nodiscard]] bool reads_records(const job::Job& job);

/// Opens the data of [data], or the array of [infer] from; null if there is none. Of arrays it reads only headers and
/// labels, of token files the first tokens, of texts everything, in pieces. `vocab`: of a model that is applied to
/// tokens, 0 if it is not known; nothing: a model is applied to numbers. Throws Error{data} for invalid input,
/// Error{job} if the model cannot use it.
[[nodiscard]] std::unique_ptr<Dataset> open_dataset(const job::Job& job,
                                                    std::optional<std::int64_t> vocab = std::nullopt);

/// One line about a batch that is larger than an epoch; empty if it is not.
[[nodiscard]] std::string batch_notice(const Dataset& dataset, std::int64_t batch);

/// A line for each file of [data] text and tokens that has the name of another format, such as x.jsonl.
[[nodiscard]] std::vector<std::string> name_notices(const job::DataSettings& data);

/// For models whose functions have no inputs.
[[nodiscard]] std::unique_ptr<Dataset> no_data();

/// The data set that another process of this host has opened and loaded, by the handles of its files: the very same
/// bytes. Null if they are out of reach. `vocab`: as of open_dataset(). Throws Error{io} if a file has changed since.
[[nodiscard]] std::unique_ptr<Dataset> attach_dataset(const job::Job& job, const std::vector<std::string>& handles,
                                                      std::optional<std::int64_t> vocab = std::nullopt);

/// Handles for other processes. Valid while this process keeps the data set.
[[nodiscard]] std::vector<std::string> handles_of(const Dataset& dataset);

/// Lets processes that are started while this exists inherit a data set's files.
class InheritedData {
 public:
  explicit InheritedData(const Dataset& dataset);

  [[nodiscard]] const std::vector<std::string>& handles() const noexcept { return handles_; }

 private:
  std::vector<files::FileDescriptor> copies_;
  std::vector<std::string> handles_;
};

}  // namespace shardrun::data
