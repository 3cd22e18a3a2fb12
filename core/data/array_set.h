#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "core/data/npy.h"

namespace shardrun::data {

/// Samples in .npy files. x: [n, …] numbers; a row is a sample, flattened to `features` numbers. y: labels ([n]
/// integers) or targets ([n] or [n, outputs] floats). The first `training_rows` rows are training data, the others
/// validation data.
class ArraySet {
 public:
  /// Opens the arrays. `split`: the fraction of rows for training. Throws Error{data} if the arrays are empty or do not
  /// fit together, and as NpyArray and training_count() do.
  ArraySet(files::SteadyFile x, std::optional<files::SteadyFile> y, double split);

  [[nodiscard]] std::int64_t rows() const noexcept { return x_.shape()[0]; }
  [[nodiscard]] std::int64_t training_rows() const noexcept { return training_rows_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return x_.path(); }
  [[nodiscard]] std::int64_t features() const noexcept { return features_; }
  [[nodiscard]] bool has_labels() const noexcept { return y_.has_value() && is_integer(y_->type()); }
  /// Numbers in a row of y; 0 if there is no y, or if y has labels.
  [[nodiscard]] std::int64_t outputs() const noexcept { return outputs_; }

  /// The file of x, then the file of y if there is one.
  [[nodiscard]] std::vector<const files::SteadyFile*> files() const;
  /// Throws Error{io} if one of the files has changed since it was opened.
  void require_unchanged() const;

  /// The number of classes: one more than the largest label. Reads all labels, so call it once. Throws Error{data} that
  /// names the first label that is negative or at least 2^31 - 1. REQUIRES: has_labels().
  [[nodiscard]] std::int64_t classes() const;

  /// Reads all numbers. Throws Error{data} for the first one that is NaN, infinite or too large for float32.
  void require_finite(int threads) const;

  // These functions fill row i of `to` with row rows[i] of the set, and allocate nothing. If require_unchanged() passes
  // afterwards, the values are those of the files as opened. They throw Error{internal} if `to` has another size, a row
  // does not exist, or y is missing or of the other kind; Error{io} if a file was truncated.

  void fill_features(std::span<const std::int64_t> rows, std::span<float> to) const;
  void fill_targets(std::span<const std::int64_t> rows, std::span<float> to) const;
  /// Also throws Error{data} that names the first label outside of [0, classes), and Error{io} if the file has changed.
  void fill_labels(std::span<const std::int64_t> rows, std::int64_t classes, std::span<std::int32_t> to) const;

 private:
  NpyArray x_;
  std::optional<NpyArray> y_;
  std::int64_t training_rows_ = 0;
  std::int64_t features_ = 1;
  std::int64_t outputs_ = 0;
};

/// Writes to `rows` the row numbers of the global samples first_sample, first_sample + 1 and so on, by
/// permuted_sample() over the training rows.
void training_samples(const ArraySet& set, std::uint64_t seed, std::int64_t first_sample, std::span<std::int64_t> rows);

}  // namespace shardrun::data
