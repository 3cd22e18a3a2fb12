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

/// Tensors that can be read, from any kind of file. The object from which `read` reads must outlive the source.
struct TensorSource {
  /// The tensors of a safetensors file, which must outlive this object.
  TensorSource(const SafetensorsFile& file);  // NOLINT(google-explicit-constructor): a file is one
  TensorSource() = default;

  /// The index of the tensor of this name. If there is none, throws Error{data} with the most similar name.
  [[nodiscard]] std::size_t index_of(std::string_view name) const;

  std::filesystem::path path;                ///< named in messages
  std::vector<std::filesystem::path> files;  ///< the files from which `read` reads
  Metadata metadata;
  std::vector<TensorInfo> tensors;
  /// Copies elements of a tensor into `to`, in row-major order from index `first` on, until `to` is full.
  std::function<void(std::size_t tensor, std::int64_t first, std::span<std::byte> to)> read;
  bool has_slow_reads = false;  ///< whether even a short read takes long
};

/// The tensors that the run's weights.safetensors would have: the parameters, or the fields of an iterated run. A
/// tensor that varies between ranks is the first rank's copy. The metadata is that of describe_model().
[[nodiscard]] TensorSource weights_of(const OpenCheckpoint& checkpoint);

/// All tensors of a checkpoint, with the same metadata as weights_of().
[[nodiscard]] TensorSource states_of(const OpenCheckpoint& checkpoint);

/// A .npy array as a single tensor of type float32. Numbers of other types are converted as NpyArray::read() does.
[[nodiscard]] TensorSource array_source(const data::NpyArray& array, std::string name);

/// The tensors of a safetensors file or of a folder: model.safetensors, or the files in model.safetensors.index.json.
class TensorFiles {
 public:
  /// Opens the files. Throws Error{data} if one is missing or damaged, or if the index and the files disagree.
  explicit TensorFiles(const std::filesystem::path& path);

  [[nodiscard]] const TensorSource& source() const noexcept { return source_; }
  /// A text that identifies the content of all files.
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

/// The place of an element as text, such as "[0, 3] (counted from 0)".
[[nodiscard]] std::string place_of(const TensorInfo& info, std::int64_t element);

/// Throws Error{data} with the place of the first value that is NaN or infinite, if there is one. `first`: the index in
/// the tensor of values[0].
void require_finite(const TensorSource& source, std::size_t tensor, std::int64_t first, std::span<const float> values);

/// Calls `take` with the tensor's bytes in order, converted to `dtype`. Throws Error{data}, with the number's place, if
/// a finite number would become infinite. REQUIRES: the types are equal, or both are real types that tensors
/// of jobs have.
void stream_as(const TensorSource& source, std::size_t tensor, DType dtype,
               const std::function<void(std::span<const std::byte>)>& take);

/// Fills `to` with a tensor's elements from index `first` on. They can be NaN or infinite. Throws as stream_as() does.
/// REQUIRES: the tensor is of a real type and has these elements.
void read_any_as_float(const TensorSource& source, std::size_t tensor, std::int64_t first, std::span<float> to);

/// Fills `to` as read_any_as_float() does. Throws as read_any_as_float() and require_finite() do.
void read_as_float(const TensorSource& source, std::size_t tensor, std::int64_t first, std::span<float> to);

}  // namespace shardrun::checkpoint
