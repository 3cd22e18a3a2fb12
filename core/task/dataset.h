#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "core/data/tokenizer.h"
#include "core/device/device.h"
#include "core/job/job.h"
#include "core/models/model.h"

namespace shardrun::task {

/// The data of a training job, whichever kind it is. Fills write whole input tensors by global sample index and, on the
/// cpu device, allocate nothing. Immutable once made.
class Dataset {
 public:
  virtual ~Dataset() = default;

  [[nodiscard]] virtual models::DataShape shape() const = 0;
  /// Null where there is no text.
  [[nodiscard]] virtual const data::Tokenizer* tokenizer() const noexcept { return nullptr; }
  /// Samples of one whole evaluation; 0 where everything is trained on.
  [[nodiscard]] virtual std::int64_t evaluation_samples() const = 0;
  /// Tokens in a sample; 1 for arrays.
  [[nodiscard]] virtual std::int64_t tokens_per_sample() const = 0;
  /// Reads all of the data once, divided among `threads`: throws Error{data}, with the setting's place, for a token
  /// that the model does not have, and for a number that is not finite. Before the data is trained on, once on each
  /// machine.
  virtual void check(int threads) const = 0;
  /// One line for the person who started the job.
  [[nodiscard]] virtual std::string describe() const = 0;

  /// As many samples as the views have rows, from the global sample `first` on.
  virtual void fill_training(std::uint64_t seed, std::int64_t first, const device::TensorView& inputs,
                             const device::TensorView& targets, std::size_t f32_bytes) const = 0;
  virtual void fill_evaluation(std::int64_t first, const device::TensorView& inputs, const device::TensorView& targets,
                               std::size_t f32_bytes) const = 0;
};

/// The files that [data] names.
[[nodiscard]] std::vector<std::filesystem::path> data_files(const job::DataSettings& data);

/// Opens what [data] names; of arrays and token files it reads no more than it has to (headers, labels); null where it
/// names nothing. Throws Error{data} for input that is not what it should be, Error{job} where the model cannot use it.
[[nodiscard]] std::unique_ptr<Dataset> open_dataset(const job::Job& job);

}  // namespace shardrun::task
