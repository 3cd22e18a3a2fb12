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

/// The data of a job, of any kind. The fill functions write whole input tensors by global sample index; on the cpu
/// device they allocate nothing. The numbers never change: a changed file is an error. Only one thread at a time may
/// use it.
class Dataset {
 public:
  virtual ~Dataset() = default;

  [[nodiscard]] virtual workload::DataShape shape() const = 0;
  /// Null if the data is not text.
  [[nodiscard]] virtual const Tokenizer* tokenizer() const noexcept { return nullptr; }
  /// The number of samples in an evaluation; 0 if all data is for training.
  [[nodiscard]] virtual std::int64_t evaluation_samples() const = 0;
  /// The number of samples in an epoch, which contains each once; 0 if samples are drawn with replacement, or there are
  /// none.
  [[nodiscard]] virtual std::int64_t epoch_samples() const { return 0; }
  /// The number of tokens in a sample; 1 for arrays.
  [[nodiscard]] virtual std::int64_t tokens_per_sample() const = 0;
  /// Reads all data once, with `threads` threads. Throws Error{data}, with the setting's place, for a token that the
  /// model does not have, or a number that is not finite. Called once on each machine, before training.
  virtual void check(int threads) const = 0;
  /// Prepares the fill functions: makes the tokens of texts, in memory that the processes of a host share. Called once
  /// on each host, after check(); the host's other processes call attach_dataset(). Throws Error{io} if a text has
  /// changed since it was opened.
  virtual void load() {}
  /// host_bytes(): the bytes of that memory on a host. bytes_to_load(): how many of them load() still has to allocate.
  [[nodiscard]] virtual std::uint64_t host_bytes() const { return 0; }
  [[nodiscard]] virtual std::uint64_t bytes_to_load() const { return 0; }

  // The following return one element for each of data_files(). REQUIRES: load() was called, or attach_dataset() made
  // this object.

  /// The files that the fill functions read; for texts, the memory that load() made.
  [[nodiscard]] virtual std::vector<const files::SteadyFile*> files() const { return {}; }
  /// Identifies the bytes that the fill functions read: "1115394 bytes, hash 9d2c5681a3b0c7f4".
  [[nodiscard]] virtual std::vector<std::string> fingerprints() const;

  /// One line that describes the data for people.
  [[nodiscard]] virtual std::string describe() const = 0;

  // The following throw Error{io} if a file was truncated or has changed, Error{data} for a token or label that the
  // model does not have. The same REQUIRES as for files().

  /// Fills the rows of the views, which are in host memory, with the samples from the global sample `first` on.
  virtual void fill_training(std::uint64_t seed, std::int64_t first, const device::TensorView& inputs,
                             const device::TensorView& targets) const = 0;
  /// `targets`: ignored for data without targets.
  virtual void fill_evaluation(std::int64_t first, const device::TensorView& inputs,
                               const device::TensorView& targets) const = 0;
};

/// The files that [data] names or, if a model is applied to an array, that [infer] from names.
[[nodiscard]] std::vector<std::filesystem::path> data_files(const job::Job& job);

/// Whether a model is applied to a stream of records: standard input, a pipe, or a file with several arrays.
[[nodiscard]] bool reads_records(const job::Job& job);

/// Opens the data of [data], or the array of [infer] from; null if there is none. Of arrays it reads only headers and
/// labels, of token files the first tokens, of texts everything, in pieces. `vocab`: if a model is applied to tokens,
/// its vocabulary, or 0 if that is not known; nothing if it is applied to numbers. Throws Error{data} for invalid
/// input, Error{job} if the model cannot use it.
[[nodiscard]] std::unique_ptr<Dataset> open_dataset(const job::Job& job,
                                                    std::optional<std::int64_t> vocab = std::nullopt);

/// One line about a batch that is larger than an epoch; empty if it is not.
[[nodiscard]] std::string batch_notice(const Dataset& dataset, std::int64_t batch);

/// A line for each file of [data] text and tokens whose name suggests another format, such as x.jsonl.
[[nodiscard]] std::vector<std::string> name_notices(const job::DataSettings& data);

/// Data for models whose functions have no inputs.
[[nodiscard]] std::unique_ptr<Dataset> no_data();

/// The data set that another process of this host has opened and loaded, found by the handles of its files: exactly the
/// same bytes. Null if they are not accessible. `vocab`: as in open_dataset(). Throws Error{io} if a file has changed
/// since.
[[nodiscard]] std::unique_ptr<Dataset> attach_dataset(const job::Job& job, const std::vector<std::string>& handles,
                                                      std::optional<std::int64_t> vocab = std::nullopt);

/// Handles of a data set's files for other processes. Valid while this process keeps the data set.
[[nodiscard]] std::vector<std::string> handles_of(const Dataset& dataset);

/// While this object exists, processes that are started inherit a data set's files.
class InheritedData {
 public:
  explicit InheritedData(const Dataset& dataset);

  [[nodiscard]] const std::vector<std::string>& handles() const noexcept { return handles_; }

 private:
  std::vector<files::FileDescriptor> copies_;
  std::vector<std::string> handles_;
};

}  // namespace shardrun::data
