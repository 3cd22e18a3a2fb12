#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "core/data/npy.h"

namespace shardrun::data {

/// Samples as arrays in .npy files. x: [n, …] numbers, one sample per row, flattened to `features`. y: labels ([n]
/// integers) or targets ([n] or [n, outputs] floats). The first `training_rows` rows are for training.
class ArraySet {
 public:
  /// Throws Error{data} if the arrays are empty or do not fit together, and as NpyArray and `training_count` do.
  ArraySet(files::SteadyFile x, std::optional<files::SteadyFile> y, double split);

  [[nodiscard]] std::int64_t rows() const noexcept { return x_.shape()[0]; }
  [[nodiscard]] std::int64_t training_rows() const noexcept { return training_rows_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return x_.path(); }
  [[nodiscard]] std::int64_t features() const noexcept { return features_; }
  [[nodiscard]] bool has_labels() const noexcept { return y_.has_value() && is_integer(y_->type()); }
  /// Numbers in a row of y; 0 if there is no y, or if it holds labels.
  [[nodiscard]] std::int64_t outputs() const noexcept { return outputs_; }

  /// The file of x, then the file of y if there is one.
  [[nodiscard]] std::vector<const files::SteadyFile*> files() const;
  /// As files::SteadyFile::require_unchanged(), for both files.
  void require_unchanged() const;

  /// One more than the largest label. Throws Error{data}, which names the first negative label. Reads all labels, so
  /// call it once. REQUIRES: has_labels().
  [[nodiscard]] std::int64_t classes() const;

  /// Reads all numbers. For the first one that cannot be used, throws Error{data} as data::require_finite() does.
  void require_finite(int threads) const;

  // Each fills row i of its output with row rows[i] of the set, and allocates nothing. Call require_unchanged()
  // afterwards: if it passes, the values are those of the files as opened. Throw Error{internal} if the output has
  // another size, a row does not exist, or y is of the other kind or missing; Error{io} if a file was truncated.

  void fill_features(std::span<const std::int64_t> rows, std::span<float> to) const;
  void fill_targets(std::span<const std::int64_t> rows, std::span<float> to) const;
  /// Throws Error{data}, which names the first label outside [0, classes); or Error{io} if the file has changed.
  void fill_labels(std::span<const std::int64_t> rows, std::int64_t classes, std::span<std::int32_t> to) const;

 private:
  NpyArray x_;
  std::optional<NpyArray> y_;
  std::int64_t training_rows_ = 0;
  std::int64_t features_ = 1;
  std::int64_t outputs_ = 0;
};

/// The rows of the global samples first_sample, first_sample + 1, …: `permuted_sample` applied to the training rows.
void training_samples(const ArraySet& set, std::uint64_t seed, std::int64_t first_sample, std::span<std::int64_t> rows);

}  // namespace shardrun::data
