#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "core/data/npy.h"

namespace shardrun::data {

/// Samples as arrays in .npy files. x: [n, …] numbers, one row a sample, flattened to `features`. y: either labels, [n]
/// integers, or targets, [n] or [n, outputs] floats. Rows below `training_rows` are trained on.
class ArraySet {
 public:
  /// Throws Error{data} where the arrays are empty or do not fit together, and as NpyArray and `training_count` do.
  ArraySet(files::SteadyFile x, std::optional<files::SteadyFile> y, double split);

  [[nodiscard]] std::int64_t rows() const noexcept { return x_.shape()[0]; }
  [[nodiscard]] std::int64_t training_rows() const noexcept { return training_rows_; }
  [[nodiscard]] std::int64_t validation_rows() const noexcept { return rows() - training_rows_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return x_.path(); }
  [[nodiscard]] std::int64_t features() const noexcept { return features_; }
  [[nodiscard]] bool has_labels() const noexcept { return y_.has_value() && is_integer(y_->type()); }
  /// Numbers a row of y; 0 where there is no y, or where it holds labels.
  [[nodiscard]] std::int64_t outputs() const noexcept { return outputs_; }

  /// The files: of x, then of y where there is one.
  [[nodiscard]] std::vector<const files::SteadyFile*> files() const;
  /// As files::SteadyFile::require_unchanged, of both.
  void require_unchanged() const;

  /// One more than the largest label. Throws Error{data} that names the first negative one. Reads them all: call it
  /// once. REQUIRES: has_labels().
  [[nodiscard]] std::int64_t classes() const;

  /// Throws Error{data} as data::require_finite for the first number that cannot be trained on. Reads them all.
  void require_finite(int threads) const;

  // Each fills row i of its output with row rows[i] of the set and allocates nothing. Call require_unchanged()
  // afterwards: only if it passes are the values those of the files as they were opened.
  // Throw Error{internal} where the output is not of that size, a row does not exist, or there is no such y; Error{io}
  // where a file was cut short.

  void fill_features(std::span<const std::int64_t> rows, std::span<float> to) const;
  void fill_targets(std::span<const std::int64_t> rows, std::span<float> to) const;
  /// Throws Error{data} that names the first label outside [0, classes), or Error{io} where that has come of a change.
  void fill_labels(std::span<const std::int64_t> rows, std::int64_t classes, std::span<std::int32_t> to) const;

 private:
  NpyArray x_;
  std::optional<NpyArray> y_;
  std::int64_t training_rows_ = 0;
  std::int64_t features_ = 1;
  std::int64_t outputs_ = 0;
};

/// Which rows the global samples first_sample, first_sample + 1, … are: `permuted_sample` over the training rows.
void training_samples(const ArraySet& set, std::uint64_t seed, std::int64_t first_sample, std::span<std::int64_t> rows);

}  // namespace shardrun::data
