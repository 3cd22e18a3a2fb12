#include "core/data/array_set.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/stop.h"
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

/// The length of the run of consecutive row numbers with which `rows` begins.
std::size_t run_of(std::span<const std::int64_t> rows) {
  std::size_t count = 1;
  while (count < rows.size() && rows[count] == rows[0] + static_cast<std::int64_t>(count)) {
    ++count;
  }
  return count;
}

void fill_rows(const NpyArray& from, std::int64_t width, std::span<const std::int64_t> rows, std::span<float> to) {
  require_fit(rows.size(), width, to.size());
  for (const std::int64_t row : rows) {
    require_row(row, from.shape()[0]);
  }
  while (!rows.empty()) {
    const std::size_t count = run_of(rows);
    const std::size_t elements = count * static_cast<std::size_t>(width);
    from.read(rows[0] * width, to.first(elements));
    rows = rows.subspan(count);
    to = to.subspan(elements);
  }
}

/// The number of labels read at once.
constexpr std::size_t label_block = 64;

/// The limit for the number of classes, because labels are 32-bit integers.
constexpr std::int64_t most_classes = INT32_MAX;

Error bad_label(const NpyArray& y, std::int64_t row, std::int64_t label, const std::string& expected) {
  const std::string found =
      y.type() == NpyType::u64 ? fmt::format("{}", static_cast<std::uint64_t>(label)) : fmt::format("{}", label);
  return Error(ErrorCode::data, fmt::format("'{}': the label of row {} (counted from 0) is {}: {}", y.path().native(),
                                            row, found, expected));
}

}  // namespace

ArraySet::ArraySet(files::SteadyFile x, std::optional<files::SteadyFile> y, double split) : x_(std::move(x)) {
  require_rows(x_);
  features_ = elements_per_row(x_);
  training_rows_ = training_count(rows(), split, x_.path().native());
  if (y) {
    y_.emplace(std::move(*y));
    require_rows(*y_);
    require_same_rows(x_, *y_);
    require_labels_or_targets(*y_);
    outputs_ = has_labels() ? 0 : elements_per_row(*y_);
  }
}

std::vector<const files::SteadyFile*> ArraySet::files() const {
  std::vector<const files::SteadyFile*> files = {&x_.file()};
  if (y_) {
    files.push_back(&y_->file());
  }
  return files;
}

void ArraySet::require_unchanged() const {
  x_.file().require_unchanged();
  if (y_) {
    y_->file().require_unchanged();
  }
}

std::int64_t ArraySet::classes() const {
  std::int64_t classes = 1;
  std::vector<std::int64_t> labels(8192);
  for (std::int64_t first = 0; first < rows(); first += static_cast<std::int64_t>(labels.size())) {
    stop_point();
    labels.resize(
        static_cast<std::size_t>(std::min<std::int64_t>(static_cast<std::int64_t>(labels.size()), rows() - first)));
    y_->read(first, labels);
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (labels[i] < 0 || labels[i] >= most_classes) {
        throw bad_label(*y_, first + static_cast<std::int64_t>(i), labels[i],
                        fmt::format("labels count classes from 0, of which there may be {}", most_classes));
      }
      classes = std::max(classes, labels[i] + 1);
    }
  }
  return classes;
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

void ArraySet::fill_labels(std::span<const std::int64_t> rows, std::int64_t classes, std::span<std::int32_t> to) const {
  require_fit(rows.size(), has_labels() ? 1 : 0, to.size());
  for (const std::int64_t row : rows) {
    require_row(row, this->rows());
  }
  std::array<std::int64_t, label_block> labels = {};
  while (!rows.empty()) {
    const std::size_t count = std::min(run_of(rows), labels.size());
    y_->read(rows[0], std::span(labels).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      if (labels[i] < 0 || labels[i] >= classes) {
        y_->file().require_unchanged();
        throw bad_label(*y_, rows[i], labels[i], fmt::format("the model has classes 0 to {}", classes - 1));
      }
      to[i] = static_cast<std::int32_t>(labels[i]);
    }
    rows = rows.subspan(count);
    to = to.subspan(count);
  }
}

void training_samples(const ArraySet& set, std::uint64_t seed, std::int64_t first_sample,
                      std::span<std::int64_t> rows) {
  for (std::int64_t& row : rows) {
    row = permuted_sample(seed, first_sample++, set.training_rows());
  }
}

}  // namespace shardrun::data
