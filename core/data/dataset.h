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

/// The data of a job, of any kind. The fill functions write samples by their global index, and allocate nothing if the
/// views are of f32 and i32. Values never change, because a changed file is an error. Only one thread at a time can use
/// a data set.
class Dataset {
 public:
  virtual ~Dataset() = default;

  [[nodiscard]] virtual workload::DataShape shape() const = 0;
  /// The tokenizer of a text; null for other data.
  [[nodiscard]] virtual const Tokenizer* tokenizer() const noexcept { return nullptr; }
  /// The number of samples in an evaluation; 0 if all data is for training.
  [[nodiscard]] virtual std::int64_t evaluation_samples() const = 0;
  /// The number of samples in an epoch, in which each sample occurs once; 0 if samples are drawn with replacement, or
  /// if there are none.
  [[nodiscard]] virtual std::int64_t epoch_samples() const { return 0; }
  /// The number of tokens in a sample; 1 for arrays.
  [[nodiscard]] virtual std::int64_t tokens_per_sample() const = 0;
  /// Reads all data once, with `threads` threads, except texts, which opening has read. Called once on each machine,
  /// before training. Throws Error{data}, with the setting's place, for a token outside of the model's vocabulary or a
  /// number that is not finite as float32; Error{io} as files::SteadyFile::read() does.
  virtual void check(int threads) const = 0;
  /// Prepares the fill functions. For a text, makes its tokens in memory that all processes of the host share. Called
  /// once on each host, after check(). Other processes call attach_dataset(). Throws as TextFile::tokenise() does.
  virtual void load() {}
  /// host_bytes() is the size in bytes of the memory that load() makes. bytes_to_load() is how much of it is not
  /// allocated yet.
  [[nodiscard]] virtual std::uint64_t host_bytes() const { return 0; }
  [[nodiscard]] virtual std::uint64_t bytes_to_load() const { return 0; }

  // These functions return one element for each file of data_files(). REQUIRES: load() was called, or attach_dataset()
  // made this object.

  /// The files that the fill functions read. For a text, it is the memory that load() made.
  [[nodiscard]] virtual std::vector<const files::SteadyFile*> files() const { return {}; }
  /// For each file, a text that identifies its bytes: "1115394 bytes, hash 9d2c5681a3b0c7f4".
  [[nodiscard]] virtual std::vector<std::string> fingerprints() const;

  /// One line that describes the data to the user.
  [[nodiscard]] virtual std::string describe() const = 0;

  // These functions throw Error{io} if a file was truncated or has changed, Error{data} for a token or label that the
  // model does not have. REQUIRES: load() was called, or attach_dataset() made this object.

  /// Fills the views, which are in host memory, with training samples. The first row gets the global sample `first`.
  virtual void fill_training(std::uint64_t seed, std::int64_t first, const device::TensorView& inputs,
                             const device::TensorView& targets) const = 0;
  /// Fills the views with evaluation samples from `first` on. `targets` is ignored for data without targets.
  virtual void fill_evaluation(std::int64_t first, const device::TensorView& inputs,
                               const device::TensorView& targets) const = 0;
};

/// The files that [data] names or, if a model is applied to an array, the file that [infer] from names.
[[nodiscard]] std::vector<std::filesystem::path> data_files(const job::Job& job);

/// Whether the job applies a model to a stream of records: standard input, a pipe, or a file with several arrays.
[[nodiscard]] bool reads_records(const job::Job& job);

/// The number of prompts in the job's file: lines that are not blank. Nothing if it is a stream, cannot be read, or is
/// too large to be counted.
[[nodiscard]] std::optional<std::int64_t> prompts_of(const job::Job& job);

/// Opens the data of [data], or the array of [infer] from; null if the job has neither. It reads only the headers and
/// labels of arrays and the first tokens of token files, but whole texts. `vocab`: the model's vocabulary if the model
/// is applied to tokens (0 if unknown); nothing if it is applied to numbers. Throws Error{data} for invalid files,
/// Error{job} if the model cannot use the data, Error{io} as files::SteadyFile does.
[[nodiscard]] std::unique_ptr<Dataset> open_dataset(const job::Job& job,
                                                    std::optional<std::int64_t> vocab = std::nullopt);

/// A line for the user if a batch is larger than an epoch; otherwise "".
[[nodiscard]] std::string batch_notice(const Dataset& dataset, std::int64_t batch);

/// A line for the user for each file of [data] text and tokens whose name suggests another format, such as x.jsonl.
[[nodiscard]] std::vector<std::string> name_notices(const job::DataSettings& data);

/// A data set for models whose functions have no inputs.
[[nodiscard]] std::unique_ptr<Dataset> no_data();

/// Opens the data set that another process of this host has loaded, by the handles of its files. Null if the files
/// cannot be opened. `vocab`: as in open_dataset(). Throws Error{io} if a file has changed since it was loaded.
[[nodiscard]] std::unique_ptr<Dataset> attach_dataset(const job::Job& job, const std::vector<std::string>& handles,
                                                      std::optional<std::int64_t> vocab = std::nullopt);

/// Texts with which other processes can open the data set's files, while this process keeps the data set.
[[nodiscard]] std::vector<std::string> handles_of(const Dataset& dataset);

/// While this object exists, processes that this process starts inherit the data set's files.
class InheritedData {
 public:
  explicit InheritedData(const Dataset& dataset);

  [[nodiscard]] const std::vector<std::string>& handles() const noexcept { return handles_; }

 private:
  std::vector<files::FileDescriptor> copies_;
  std::vector<std::string> handles_;
};

}  // namespace shardrun::data
