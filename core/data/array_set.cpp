#include "core/data/array_set.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/data/finite.h"
#include "core/data/sampler.h"
#include "core/data/split.h"

namespace shardrun::data {
namespace {

std::int64_t elements_per_row(const NpyArray& array) { return array.elements() / array.shape()[0]; }

void require_rows(const NpyArray& array) {
  if (array.shape().empty() || array.elements() == 0) {
    throw Error(ErrorCode::data,
                fmt::format("array '{}' has shape ({}): expected at least one row of at least one number",
                            array.path().native(), fmt::join(array.shape(), ", ")));
  }
}

void require_same_rows(const NpyArray& x, const NpyArray& y) {
  if (x.shape()[0] != y.shape()[0]) {
    throw Error(ErrorCode::data, fmt::format("'{}' has {} rows and '{}' has {}: expected one row of each a sample",
                                             x.path().native(), x.shape()[0], y.path().native(), y.shape()[0]));
  }
}

void require_labels_or_targets(const NpyArray& y) {
  const std::size_t most = is_integer(y.type()) ? 1 : 2;
  if (y.shape().size() > most) {
    throw Error(ErrorCode::data,
                fmt::format("'{}' is {} of shape ({}): expected integer labels of shape (n), or floats of shape (n) or "
                            "(n, outputs)",
                            y.path().native(), to_string(y.type()), fmt::join(y.shape(), ", ")));
  }
}

void require_fit(std::size_t rows, std::int64_t width, std::size_t elements) {
  if (width == 0 || rows * static_cast<std::size_t>(width) != elements) {
    throw Error(ErrorCode::internal, fmt::format("{} rows of {} numbers do not fill {}", rows, width, elements));
  }
}

void require_row(std::int64_t row, std::int64_t rows) {
  if (row < 0 || row >= rows) {
    throw Error(ErrorCode::internal, fmt::format("row {} of a set of {}", row, rows));
  }
}

void fill_rows(const NpyArray& from, std::int64_t width, std::span<const std::int64_t> rows, std::span<float> to) {
  require_fit(rows.size(), width, to.size());
  for (const std::int64_t row : rows) {
    require_row(row, from.shape()[0]);
    from.read(row * width, to.first(static_cast<std::size_t>(width)));
    to = to.subspan(static_cast<std::size_t>(width));
  }
}

}  // namespace

ArraySet::ArraySet(const std::filesystem::path& x, const std::optional<std::filesystem::path>& y, double split)
    : x_(x) {
  require_rows(x_);
  features_ = elements_per_row(x_);
  training_rows_ = training_count(rows(), split, x.native());
  if (y) {
    y_.emplace(*y);
    require_rows(*y_);
    require_same_rows(x_, *y_);
    require_labels_or_targets(*y_);
    outputs_ = has_labels() ? 0 : elements_per_row(*y_);
  }
}

void ArraySet::require_labels_below(std::int64_t classes) const {
  for (std::int64_t row = 0; has_labels() && row < rows(); ++row) {
    std::int64_t label = 0;
    y_->read(row, std::span(&label, 1));
    if (label < 0 || label >= classes) {
      throw Error(ErrorCode::data, fmt::format("'{}': the label of row {} is {}; the model has classes 0 to {}",
                                               y_->path().native(), row, label, classes - 1));
    }
  }
}

void ArraySet::require_finite(int threads) const {
  data::require_finite(x_, threads);
  if (y_) {
    data::require_finite(*y_, threads);
  }
}

void ArraySet::fill_features(std::span<const std::int64_t> rows, std::span<float> to) const {
  fill_rows(x_, features_, rows, to);
}

void ArraySet::fill_targets(std::span<const std::int64_t> rows, std::span<float> to) const {
  if (outputs_ == 0) {
    throw Error(ErrorCode::internal, "the data set has no targets");
  }
  fill_rows(*y_, outputs_, rows, to);
}

void ArraySet::fill_labels(std::span<const std::int64_t> rows, std::span<std::int32_t> to) const {
  require_fit(rows.size(), has_labels() ? 1 : 0, to.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    require_row(rows[i], this->rows());
    std::int64_t label = 0;
    y_->read(rows[i], std::span(&label, 1));
    to[i] = static_cast<std::int32_t>(label);
  }
}

void training_samples(const ArraySet& set, std::uint64_t seed, std::int64_t first_sample,
                      std::span<std::int64_t> rows) {
  for (std::int64_t& row : rows) {
    row = permuted_sample(seed, first_sample++, set.training_rows());
  }
}

}  // namespace shardrun::data
