#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/checkpoint/tensor_source.h"

namespace shardrun::checkpoint {

/// A tensor that is open for reading. The object from which it reads lives as long as `read` does.
struct OpenTensor {
  TensorInfo info;
  std::filesystem::path path;                ///< named in messages
  std::vector<std::filesystem::path> files;  ///< the files that `read` reads
  /// Copies elements from index `first` on into `to`, in their stored type.
  std::function<void(std::int64_t first, std::span<std::byte> to)> read;
};

/// One state or output of a run, at all steps at which it was saved. It looks in state files (state.safetensors,
/// state-000100.safetensors), the folder of outputs, weights.safetensors, and checkpoints.
class History {
 public:
  /// Where to look. `results`: in state files and outputs. `all`: also in checkpoints and weights.safetensors.
  enum class From : std::uint8_t { results, all };

  /// The step of weights if neither their metadata nor their run tells it.
  static constexpr std::int64_t unknown_step = -1;

  /// Finds the saved tensors of this name. `given`: the folder of a run or of checkpoints, a checkpoint, or a
  /// .safetensors file. Throws Error{usage} if it is none of these, Error{data} if the tensor is missing or unreadable.
  History(const std::filesystem::path& given, std::string name, From from = From::all);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// The steps at which the tensor was saved, ascending; at least one.
  [[nodiscard]] std::vector<std::int64_t> steps() const;
  /// Opens the tensor as it was saved at a step. In a checkpoint, first compares the files with the manifest's hashes.
  /// Throws Error{usage} if nothing was saved at this step, Error{data} if files are damaged.
  [[nodiscard]] OpenTensor open(std::int64_t step) const;

 private:
  /// Where the tensor is: in a safetensors file, in a .npy file of an output, or in a checkpoint.
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
  std::vector<std::string> others_;  ///< names of all saved tensors, for the error message
};

/// Reads elements from index `first` on as float64. REQUIRES: the tensor's type is one that tensors of jobs can have.
void read_numbers(const OpenTensor& tensor, std::int64_t first, std::span<double> to);

}  // namespace shardrun::checkpoint
