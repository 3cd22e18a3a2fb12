#include "core/task/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/data/array_set.h"
#include "core/data/sampler.h"
#include "core/data/tokens.h"

namespace shardrun::task {
namespace {

using device::TensorView;

std::span<std::int32_t> integers(const TensorView& view) {
  return {static_cast<std::int32_t*>(view.data), static_cast<std::size_t>(view.elements())};
}

class TokenDataset final : public Dataset {
 public:
  TokenDataset(data::TokenStream stream, std::optional<data::Tokenizer> tokenizer, double split, std::int64_t context,
               std::int64_t vocab)
      : stream_(std::move(stream)),
        tokenizer_(std::move(tokenizer)),
        split_(data::split_tokens(stream_, split)),
        context_(context),
        vocab_(vocab) {
    data::require_context(split_.training, context, fmt::format("the training part of '{}'", stream_.source()));
    if (!split_.validation.empty()) {
      data::require_context(split_.validation, context, fmt::format("the validation part of '{}'", stream_.source()));
    }
  }

  [[nodiscard]] models::DataShape shape() const override { return {.vocab = vocab_}; }
  [[nodiscard]] const data::Tokenizer* tokenizer() const noexcept override {
    return tokenizer_ ? &*tokenizer_ : nullptr;
  }
  [[nodiscard]] std::int64_t tokens_per_sample() const override { return context_; }

  [[nodiscard]] std::int64_t evaluation_samples() const override {
    return split_.validation.empty() ? 0 : data::evaluation_windows(split_.validation, context_);
  }

  [[nodiscard]] std::string describe() const override {
    return fmt::format("{}: {} training and {} validation tokens, {} distinct", stream_.source(),
                       split_.training.size(), split_.validation.size(), vocab_);
  }

  void fill_training(std::uint64_t seed, std::int64_t first, const TensorView& inputs, const TensorView& targets,
                     std::size_t) const override {
    data::fill_samples(split_.training, seed, first, context_, integers(inputs), integers(targets));
  }

  void fill_evaluation(std::int64_t first, const TensorView& inputs, const TensorView& targets,
                       std::size_t) const override {
    data::fill_evaluation(split_.validation, first, context_, integers(inputs), integers(targets));
  }

 private:
  data::TokenStream stream_;
  std::optional<data::Tokenizer> tokenizer_;
  data::TokenSplit split_;
  std::int64_t context_;
  std::int64_t vocab_;
};

class ArrayDataset final : public Dataset {
 public:
  ArrayDataset(const std::filesystem::path& x, const std::filesystem::path& y, double split) : set_(x, y, split) {
    if (set_.has_labels()) {
      classes_ = count_classes();
    }
  }

  [[nodiscard]] models::DataShape shape() const override {
    return {.vocab = classes_, .features = set_.features(), .outputs = set_.outputs()};
  }
  [[nodiscard]] std::int64_t tokens_per_sample() const override { return 1; }
  [[nodiscard]] std::int64_t evaluation_samples() const override { return set_.validation_rows(); }

  [[nodiscard]] std::string describe() const override {
    const std::string targets =
        set_.has_labels() ? fmt::format("{} classes", classes_) : fmt::format("{} targets", set_.outputs());
    return fmt::format("arrays: {} training and {} validation samples of {} features, {}", set_.training_rows(),
                       set_.validation_rows(), set_.features(), targets);
  }

  void fill_training(std::uint64_t seed, std::int64_t first, const TensorView& inputs, const TensorView& targets,
                     std::size_t f32_bytes) const override {
    for_blocks(first, inputs, targets, f32_bytes, [&](std::int64_t sample, std::span<std::int64_t> rows) {
      data::training_samples(set_, seed, sample, rows);
    });
  }

  void fill_evaluation(std::int64_t first, const TensorView& inputs, const TensorView& targets,
                       std::size_t f32_bytes) const override {
    for_blocks(first, inputs, targets, f32_bytes, [&](std::int64_t sample, std::span<std::int64_t> rows) {
      std::iota(rows.begin(), rows.end(), set_.training_rows() + sample);
    });
  }

 private:
  [[nodiscard]] std::int64_t count_classes() const {
    std::int64_t classes = 1;
    for (std::int64_t row = 0; row < set_.rows(); ++row) {
      std::int32_t label = 0;
      set_.fill_labels(std::span(&row, 1), std::span(&label, 1));
      classes = std::max<std::int64_t>(classes, std::int64_t{label} + 1);
    }
    set_.require_labels_below(classes);
    return classes;
  }

  /// Fills a block of samples at a time, whose row numbers fit on the stack.
  template <typename ChooseRows>
  void for_blocks(std::int64_t first, const TensorView& inputs, const TensorView& targets, std::size_t f32_bytes,
                  const ChooseRows& choose_rows) const {
    std::array<std::int64_t, 64> rows = {};
    const std::int64_t samples = inputs.shape[0];
    for (std::int64_t done = 0; done < samples; done += static_cast<std::int64_t>(rows.size())) {
      const auto count =
          static_cast<std::size_t>(std::min<std::int64_t>(static_cast<std::int64_t>(rows.size()), samples - done));
      const std::span<std::int64_t> block(rows.data(), count);
      choose_rows(first + done, block);
      fill_reals(block, inputs, done, f32_bytes, &data::ArraySet::fill_features);
      if (set_.has_labels()) {
        set_.fill_labels(block, integers(targets).subspan(static_cast<std::size_t>(done), count));
      } else {
        fill_reals(block, targets, done, f32_bytes, &data::ArraySet::fill_targets);
      }
    }
  }

  /// Rows of reals, in the width of the device's f32 (only the reference device's has to be widened).
  void fill_reals(std::span<const std::int64_t> rows, const TensorView& view, std::int64_t at, std::size_t f32_bytes,
                  void (data::ArraySet::*fill)(std::span<const std::int64_t>, std::span<float>) const) const {
    const auto width = static_cast<std::size_t>(view.elements() / view.shape[0]);
    const std::size_t count = rows.size() * width;
    const std::size_t offset = static_cast<std::size_t>(at) * width;
    if (f32_bytes == sizeof(float)) {
      (set_.*fill)(rows, {static_cast<float*>(view.data) + offset, count});
      return;
    }
    std::vector<float> narrow(count);
    (set_.*fill)(rows, narrow);
    std::copy(narrow.begin(), narrow.end(), static_cast<double*>(view.data) + offset);
  }

  data::ArraySet set_;
  std::int64_t classes_ = 0;
};

std::int64_t context_of(const job::Job& job) {
  if (!job.model.options.has("context")) {
    throw Error(ErrorCode::job, fmt::format("{}: model {} is not trained on tokens: use [data] arrays",
                                            job.where("model", "name"), job.model.name));
  }
  return job.model.options.integer("context");
}

/// Says which setting named the file that cannot be used.
template <class Open>
auto open_named(const job::Job& job, std::string_view key, Open open) {
  try {
    return open();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: [data] {}: {}", job.where("data", key), key, error.message()));
  }
}

std::unique_ptr<Dataset> open_tokens(const job::Job& job) {
  const std::int64_t context = context_of(job);
  if (!job.data.text.empty()) {
    const auto kind =
        job.data.tokenizer == job::Tokenizer::byte ? data::TokenizerKind::byte : data::TokenizerKind::character;
    data::TokenizedText text = open_named(job, "text", [&] { return data::read_text(job.data.text, kind); });
    const std::int64_t vocab = text.tokenizer.vocabulary();
    return std::make_unique<TokenDataset>(std::move(text.stream), std::move(text.tokenizer), job.data.split, context,
                                          vocab);
  }
  data::TokenStream stream = open_named(job, "tokens", [&] { return data::TokenStream::map(job.data.tokens); });
  if (!job.model.options.has("vocab")) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [model] vocab is needed with [data] tokens: set it to the number of distinct "
                            "tokens",
                            job.where("data", "tokens")));
  }
  const std::int64_t vocab = job.model.options.integer("vocab");
  data::require_vocabulary(stream, vocab);
  return std::make_unique<TokenDataset>(std::move(stream), std::nullopt, job.data.split, context, vocab);
}

std::unique_ptr<Dataset> open_arrays(const job::Job& job) {
  if (job.model.options.has("context")) {
    throw Error(ErrorCode::job, fmt::format("{}: model {} is trained on tokens: use [data] text or tokens",
                                            job.where("data", "arrays"), job.model.name));
  }
  if (job.data.arrays.size() != 2) {
    throw Error(ErrorCode::job,
                fmt::format("{}: training needs two arrays, inputs and targets (x.npy, y.npy); found {}",
                            job.where("data", "arrays"), job.data.arrays.size()));
  }
  return open_named(job, "arrays", [&] {
    return std::make_unique<ArrayDataset>(job.data.arrays[0], job.data.arrays[1], job.data.split);
  });
}

}  // namespace

std::unique_ptr<Dataset> open_dataset(const job::Job& job) {
  if (!job.data.arrays.empty()) {
    return open_arrays(job);
  }
  if (job.data.text.empty() && job.data.tokens.empty()) {
    return nullptr;
  }
  return open_tokens(job);
}

}  // namespace shardrun::task
