#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/checkpoint/tensor_source.h"

namespace shardrun::checkpoint {

/// A tensor that is open for reading.
struct OpenTensor {
  TensorInfo info;
  std::filesystem::path path;                ///< for messages
  std::vector<std::filesystem::path> files;  ///< the files that `read` reads
  /// Reads elements, as TensorSource::read does.
  std::function<void(std::int64_t first, std::span<std::byte> to)> read;
};

/// One state or output of a run, at all steps at which it was saved: in state.safetensors and state-000100.safetensors,
/// in the folder of outputs, in weights.safetensors, and in checkpoints.
class History {
 public:
  /// Where to look. Checkpoints come and go while a run continues; its results stay.
  enum class From : std::uint8_t { results, all };

  /// The step of weights that do not say after how many steps they were saved.
  static constexpr std::int64_t unknown_step = -1;

  /// `given`: a run's folder, a folder of checkpoints, a checkpoint, or a safetensors file, such as an export of one.
  /// Throws Error{data}, which lists the names that exist, if nothing with this name was saved.
  History(const std::filesystem::path& given, std::string name, From from = From::all);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// The steps at which it was saved, in ascending order; at least one.
  [[nodiscard]] std::vector<std::int64_t> steps() const;
  /// Opens the tensor as saved at a step. In a checkpoint, first compares the files that contain the tensor with the
  /// manifest's hashes. Throws Error{usage} if the step was not saved, Error{data} if files are damaged.
  [[nodiscard]] OpenTensor open(std::int64_t step) const;

 private:
  /// The kind of file that contains the tensor: a safetensors file, an array, or a checkpoint.
  enum class Kind : std::uint8_t { file, output, checkpoint };
  struct Saved {
    Kind kind = Kind::file;
    std::filesystem::path path;
  };

  void add_states(const std::filesystem::path& run);
  void add_file(const std::filesystem::path& path, std::int64_t step);
  void add_weights(const std::filesystem::path& run);
  void add_outputs(const std::filesystem::path& run);
  void add_checkpoints(const std::filesystem::path& given);
  void add(Kind kind, const std::map<std::int64_t, std::filesystem::path>& saved);

  std::string name_;
  std::map<std::int64_t, Saved> saved_;
  std::vector<std::string> others_;  ///< names of the other things that were saved
};

/// Reads elements as float64. REQUIRES: the type is one that tensors of jobs have.
void read_numbers(const OpenTensor& tensor, std::int64_t first, std::span<double> to);

}  // namespace shardrun::checkpoint
