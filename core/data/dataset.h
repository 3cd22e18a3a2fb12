#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/data/tokenizer.h"
#include "core/device/device.h"
#include "core/files/steady_file.h"
#include "core/job/job.h"
#include "core/models/model.h"

namespace shardrun::data {

/// The data of a training job, whichever kind it is. Fills write whole input tensors by global sample index and, on the
/// cpu device, allocate nothing. Its numbers never change: files that do are refused. One thread at a time.
class Dataset {
 public:
  virtual ~Dataset() = default;

  [[nodiscard]] virtual models::DataShape shape() const = 0;
  /// Null where there is no text.
  [[nodiscard]] virtual const Tokenizer* tokenizer() const noexcept { return nullptr; }
  /// Samples of one whole evaluation; 0 where everything is trained on.
  [[nodiscard]] virtual std::int64_t evaluation_samples() const = 0;
  /// Tokens in a sample; 1 for arrays.
  [[nodiscard]] virtual std::int64_t tokens_per_sample() const = 0;
  /// Reads all of the data once, divided among `threads`: throws Error{data}, with the setting's place, for a token
  /// that the model does not have, and for a number that is not finite. Before the data is trained on, once on each
  /// machine.
  virtual void check(int threads) const = 0;
  /// Makes what fills need: the tokens of texts, in memory that the processes of a host share. Once on each host,
  /// behind check(); the others attach_dataset(). Throws Error{io} where a text is not what it was when it was opened.
  virtual void load() {}
  /// Bytes of that memory on a host, and how many of them load() has yet to take.
  [[nodiscard]] virtual std::uint64_t host_bytes() const { return 0; }
  [[nodiscard]] virtual std::uint64_t bytes_to_load() const { return 0; }

  // For each of data_files(). REQUIRES: load() was called, or attach_dataset() made this.

  /// What fills read: the files, or of texts what load() made.
  [[nodiscard]] virtual std::vector<const files::SteadyFile*> files() const { return {}; }
  /// "1115394 bytes, hash 9d2c5681a3b0c7f4": what tells the bytes that fills read from others.
  [[nodiscard]] virtual std::vector<std::string> fingerprints() const;

  /// One line for the person who started the job.
  [[nodiscard]] virtual std::string describe() const = 0;

  // Throw Error{io} where a file was cut short or has changed, Error{data} for a token or label that the model does not
  // have. REQUIRE what files() does.

  /// As many samples as the views have rows, from the global sample `first` on.
  virtual void fill_training(std::uint64_t seed, std::int64_t first, const device::TensorView& inputs,
                             const device::TensorView& targets, std::size_t f32_bytes) const = 0;
  virtual void fill_evaluation(std::int64_t first, const device::TensorView& inputs, const device::TensorView& targets,
                               std::size_t f32_bytes) const = 0;
};

/// The files that [data] names.
[[nodiscard]] std::vector<std::filesystem::path> data_files(const job::DataSettings& data);

/// Opens what [data] names; of arrays and token files it reads no more than it has to (headers, labels), of texts all,
/// in pieces; null where it names nothing. Throws Error{data} for input that is not what it should be, Error{job} where
/// the model cannot use it.
[[nodiscard]] std::unique_ptr<Dataset> open_dataset(const job::Job& job);

/// The data set that another process of this host has opened and loaded, by the handles of its files: the very same
/// bytes. Null where they are out of reach. Throws Error{io} where a file has changed since.
[[nodiscard]] std::unique_ptr<Dataset> attach_dataset(const job::Job& job, const std::vector<std::string>& handles);

/// Handles for other processes, while this one lives and keeps the data set.
[[nodiscard]] std::vector<std::string> handles_of(const Dataset& dataset);

/// Files of a data set that the processes inherit which are started while this exists.
class InheritedData {
 public:
  explicit InheritedData(const Dataset& dataset);

  [[nodiscard]] const std::vector<std::string>& handles() const noexcept { return handles_; }

 private:
  std::vector<files::FileDescriptor> copies_;
  std::vector<std::string> handles_;
};

}  // namespace shardrun::data
