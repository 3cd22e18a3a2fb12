#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/open_checkpoint.h"
#include "core/checkpoint/safetensors.h"
#include "core/data/npy.h"

namespace shardrun::checkpoint {

/// Whole tensors that can be read, from files of any kind. The object that it reads from outlives it.
struct TensorSource {
  /// A file's tensors.
  TensorSource(const SafetensorsFile& file);  // NOLINT(google-explicit-constructor): a file is one
  TensorSource() = default;

  /// Throws Error{data} with the nearest name if there is no such tensor.
  [[nodiscard]] std::size_t index_of(std::string_view name) const;

  std::filesystem::path path;                ///< for messages
  std::vector<std::filesystem::path> files;  ///< that `read` reads
  Metadata metadata;
  std::vector<TensorInfo> tensors;
  /// Copies elements of a tensor, from number `first` on in row-major order, as many as the bytes hold.
  std::function<void(std::size_t tensor, std::int64_t first, std::span<std::byte> to)> read;
};

/// The tensors that weights.safetensors of the run would have (the parameters, or the fields of an iterated run), and
/// the metadata of a trained model. A parameter that varies between ranks is its first copy.
[[nodiscard]] TensorSource weights_of(const OpenCheckpoint& checkpoint);

/// All tensors of a checkpoint, with the same metadata.
[[nodiscard]] TensorSource states_of(const OpenCheckpoint& checkpoint);

/// An array as the one tensor `name`, of float32: other numbers are converted as a C++ cast does.
[[nodiscard]] TensorSource array_source(const data::NpyArray& array, std::string name);

/// One safetensors file, or the files of a folder: model.safetensors, or those that model.safetensors.index.json names.
class TensorFiles {
 public:
  /// Throws Error{data} if a file is missing or damaged, or the index and the files disagree.
  explicit TensorFiles(const std::filesystem::path& path);

  [[nodiscard]] const TensorSource& source() const noexcept { return source_; }
  /// Identifies the content of all files.
  [[nodiscard]] std::string fingerprint() const;

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  TensorSource source_;
};

inline constexpr const char* one_file_name = "model.safetensors";
inline constexpr const char* index_name = "model.safetensors.index.json";

/// Elements that are read and converted at once.
inline constexpr std::int64_t elements_at_once = std::int64_t{1} << 20U;

[[nodiscard]] bool is_real(DType dtype) noexcept;

/// Throws Error{data}, with its place, for a number that is NaN or infinite. `first`: the number of the first of the
/// values within the tensor.
void require_finite(const TensorSource& source, std::size_t tensor, std::int64_t first, std::span<const float> values);

/// Calls `take` with a tensor's bytes in order, converted to `dtype`. Throws Error{data}, with its place, for a finite
/// number that would become infinite. REQUIRES: the types are equal, or both real and ones that tensors of jobs have.
void stream_as(const TensorSource& source, std::size_t tensor, DType dtype,
               const std::function<void(std::span<const std::byte>)>& take);

/// Fills `to` with a tensor's elements from number `first` on. Throws as require_finite() and stream_as(). REQUIRES:
/// they exist, and the tensor is real.
void read_as_float(const TensorSource& source, std::size_t tensor, std::int64_t first, std::span<float> to);

}  // namespace shardrun::checkpoint
