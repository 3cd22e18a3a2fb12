#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/data/array_set.h"
#include "core/data/data_files.h"
#include "core/device/elements.h"
#include "core/device/host_tensor.h"

namespace shardrun::data {
namespace {

using device::TensorView;

/// A set of arrays, and the setting that names its file, for messages.
struct NamedArrays {
  ArraySet set;
  Named name;
};

/// Throws Error{data} unless rows of both sets have the same sizes and the same kind of y.
void require_same_kind(const ArraySet& training, const ArraySet& validation) {
  const auto describe = [](const ArraySet& set) {
    return fmt::format("{} features and {}", set.features(),
                       set.has_labels() ? std::string("labels") : fmt::format("{} targets", set.outputs()));
  };
  if (training.features() != validation.features() || training.has_labels() != validation.has_labels() ||
      training.outputs() != validation.outputs()) {
    throw Error(ErrorCode::data, fmt::format("a row of '{}' has {}, one of '{}' in [data] arrays has {}: both must be "
                                             "the same",
                                             validation.path().native(), describe(validation), training.path().native(),
                                             describe(training)));
  }
}

class ArrayDataset final : public Dataset {
 public:
  /// `validation`: the validation data; nothing: the last rows of the training data are used.
  ArrayDataset(NamedArrays training, std::optional<NamedArrays> validation, std::int64_t eval_samples)
      : training_(std::move(training)), validation_(std::move(validation)), eval_samples_(eval_samples) {
    if (validation_) {
      with_name(validation_->name, [&] { require_same_kind(training_.set, validation_->set); });
    }
    if (set().has_labels()) {
      classes_ = classes_of(training_);
      if (validation_) {
        classes_ = std::max(classes_, classes_of(*validation_));
      }
    }
  }

  [[nodiscard]] workload::DataShape shape() const override {
    return {.vocab = classes_, .features = set().features(), .outputs = set().outputs()};
  }
  [[nodiscard]] std::int64_t epoch_samples() const override { return set().training_rows(); }
  [[nodiscard]] std::int64_t tokens_per_sample() const override { return 1; }
  [[nodiscard]] std::int64_t evaluation_samples() const override {
    return evaluated_samples(eval_samples_, validation_samples());
  }

  [[nodiscard]] std::vector<const files::SteadyFile*> files() const override {
    std::vector<const files::SteadyFile*> files = training_.set.files();
    if (validation_) {
      std::ranges::copy(validation_->set.files(), std::back_inserter(files));
    }
    return files;
  }

  void check(int threads) const override {
    with_name(training_.name, [&] { training_.set.require_finite(threads); });
    if (validation_) {
      with_name(validation_->name, [&] { validation_->set.require_finite(threads); });
    }
  }

  [[nodiscard]] std::string describe() const override {
    const std::string targets =
        set().has_labels() ? fmt::format("{} classes", classes_) : fmt::format("{} targets", set().outputs());
    return fmt::format("arrays: {} training and {} validation samples of {} features, {}", set().training_rows(),
                       validation_samples(), set().features(), targets);
  }

  void fill_training(std::uint64_t seed, std::int64_t first, const TensorView& inputs,
                     const TensorView& targets) const override {
    for_blocks(training_, first, inputs, targets,
               [&](std::int64_t sample, std::span<std::int64_t> rows) { training_samples(set(), seed, sample, rows); });
  }

  void fill_evaluation(std::int64_t first, const TensorView& inputs, const TensorView& targets) const override {
    for_blocks(evaluated(), first, inputs, targets, [&](std::int64_t sample, std::span<std::int64_t> rows) {
      std::iota(rows.begin(), rows.end(), first_evaluated() + sample);
    });
  }

 private:
  [[nodiscard]] const ArraySet& set() const noexcept { return training_.set; }
  [[nodiscard]] const NamedArrays& evaluated() const noexcept { return validation_ ? *validation_ : training_; }
  [[nodiscard]] std::int64_t validation_samples() const noexcept { return evaluated().set.rows() - first_evaluated(); }
  [[nodiscard]] std::int64_t first_evaluated() const noexcept { return validation_ ? 0 : set().training_rows(); }

  [[nodiscard]] static std::int64_t classes_of(const NamedArrays& arrays) {
    return with_name(arrays.name, [&] { return arrays.set.classes(); });
  }

  /// Chooses and fills a block of samples at a time, so that the row numbers of a block fit on the stack.
  template <typename ChooseRows>
  void for_blocks(const NamedArrays& arrays, std::int64_t first, const TensorView& inputs, const TensorView& targets,
                  const ChooseRows& choose_rows) const {
    with_name(arrays.name, [&] {
      fill_blocks(arrays.set, first, inputs, targets, choose_rows);
      arrays.set.require_unchanged();
    });
  }

  template <typename ChooseRows>
  void fill_blocks(const ArraySet& set, std::int64_t first, const TensorView& inputs, const TensorView& targets,
                   const ChooseRows& choose_rows) const {
    std::array<std::int64_t, 64> rows = {};
    const std::int64_t samples = inputs.shape[0];
    for (std::int64_t done = 0; done < samples; done += static_cast<std::int64_t>(rows.size())) {
      const auto count =
          static_cast<std::size_t>(std::min<std::int64_t>(static_cast<std::int64_t>(rows.size()), samples - done));
      const std::span<std::int64_t> block(rows.data(), count);
      choose_rows(first + done, block);
      fill_reals(set, block, inputs, done, &ArraySet::fill_features);
      if (set.has_labels()) {
        set.fill_labels(block, classes_,
                        device::elements_of<std::int32_t>(targets).subspan(static_cast<std::size_t>(done), count));
      } else {
        fill_reals(set, block, targets, done, &ArraySet::fill_targets);
      }
    }
  }

  /// Fills rows of real numbers in the tensor's type. Allocates memory for the conversion only if the type is not f32.
  static void fill_reals(const ArraySet& set, std::span<const std::int64_t> rows, const TensorView& view,
                         std::int64_t at,
                         void (ArraySet::*fill)(std::span<const std::int64_t>, std::span<float>) const) {
    const auto width = static_cast<std::size_t>(view.elements() / view.shape[0]);
    const std::size_t count = rows.size() * width;
    const std::size_t offset = static_cast<std::size_t>(at) * width;
    if (view.dtype == graph::DType::f32) {
      (set.*fill)(rows, device::elements_of<float>(view).subspan(offset, count));
      return;
    }
    std::vector<float> read(count);
    (set.*fill)(rows, read);
    std::vector<double> values(read.begin(), read.end());
    device::write_elements(view, static_cast<std::int64_t>(offset), values);
  }

  NamedArrays training_;
  std::optional<NamedArrays> validation_;
  std::int64_t eval_samples_;
  std::int64_t classes_ = 0;
};

NamedArrays open_pair(const job::Job& job, DataFiles& files, std::string_view key,
                      const std::vector<std::filesystem::path>& paths, double split) {
  if (paths.size() != 2) {
    throw Error(ErrorCode::job, fmt::format("{}: [data] {} needs two arrays, inputs and targets (x.npy, y.npy); found "
                                            "{}",
                                            job.where("data", key), key, paths.size()));
  }
  const Named name = name_of(job, key);
  return {with_name(name,
                    [&] {
                      files::SteadyFile x = files.open(paths[0]);
                      return ArraySet(std::move(x), files.open(paths[1]), split);
                    }),
          name};
}

}  // namespace

std::unique_ptr<Dataset> open_arrays(const job::Job& job, DataFiles& files) {
  std::optional<NamedArrays> validation;
  if (!job.data.validation_arrays.empty()) {
    validation.emplace(open_pair(job, files, "validation_arrays", job.data.validation_arrays, 1));
  }
  return std::make_unique<ArrayDataset>(
      open_pair(job, files, "arrays", job.data.arrays, validation ? 1 : job.data.split), std::move(validation),
      job.data.eval_samples);
}

}  // namespace shardrun::data
