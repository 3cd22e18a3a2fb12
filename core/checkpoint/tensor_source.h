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

/// Whole tensors that can be read, from any kind of file. The object from which it reads must outlive it.
struct TensorSource {
  /// The tensors of a file.
  TensorSource(const SafetensorsFile& file);  // NOLINT(google-explicit-constructor): a file is one
  TensorSource() = default;

  /// The index of a tensor. If there is none, throws Error{data}, which suggests the nearest name.
  [[nodiscard]] std::size_t index_of(std::string_view name) const;

  std::filesystem::path path;                ///< for messages
  std::vector<std::filesystem::path> files;  ///< the files that `read` reads
  Metadata metadata;
  std::vector<TensorInfo> tensors;
  /// Copies elements of a tensor into `to`, from number `first` on in row-major order, as many as fit.
  std::function<void(std::size_t tensor, std::int64_t first, std::span<std::byte> to)> read;
  bool has_slow_reads = false;  ///< each read takes long, however short it is
};

/// The tensors of a checkpoint that weights.safetensors of the run would have (the parameters, or the fields of an
/// iterated run), with the metadata of a trained model. For a parameter that varies between ranks, its first copy.
[[nodiscard]] TensorSource weights_of(const OpenCheckpoint& checkpoint);

/// All tensors of a checkpoint, with the same metadata as weights_of().
[[nodiscard]] TensorSource states_of(const OpenCheckpoint& checkpoint);

/// An array as a single tensor `name` of type float32. Other numbers are converted as a C++ cast does.
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

/// The number of elements that are read and converted at once.
inline constexpr std::int64_t elements_at_once = std::int64_t{1} << 20U;

[[nodiscard]] bool is_real(DType dtype) noexcept;

/// An element's place as text: "[0, 3] (counted from 0)".
[[nodiscard]] std::string place_of(const TensorInfo& info, std::int64_t element);

/// Throws Error{data}, with its place, if a number is NaN or infinite. `first`: the number within the tensor of the
/// first of the values.
void require_finite(const TensorSource& source, std::size_t tensor, std::int64_t first, std::span<const float> values);

/// Calls `take` with a tensor's bytes in order, converted to `dtype`. Throws Error{data}, with its place, if a finite
/// number would become infinite. REQUIRES: the types are equal, or both are real types that tensors of jobs can have.
void stream_as(const TensorSource& source, std::size_t tensor, DType dtype,
               const std::function<void(std::span<const std::byte>)>& take);

/// Fills `to` with a tensor's elements from number `first` on. Throws as require_finite() and stream_as() do. REQUIRES:
/// the tensor is real and has these elements.
void read_as_float(const TensorSource& source, std::size_t tensor, std::int64_t first, std::span<float> to);

}  // namespace shardrun::checkpoint
