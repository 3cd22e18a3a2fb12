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

/// What data is called in messages: the setting that names it and where that stands, "job.ini:12: [data] text".
using Named = std::string;

/// Says which setting named the file that cannot be used.
template <class Act>
auto with_name(const Named& name, Act act) {
  try {
    return act();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", name, error.message()));
  }
}

/// Tokens and the setting that names them.
struct NamedTokens {
  data::TokenStream stream;
  Named name;
};

class TokenDataset final : public Dataset {
 public:
  /// Without `validation` a part of the training data is for that.
  TokenDataset(NamedTokens training, std::optional<NamedTokens> validation, std::optional<data::Tokenizer> tokenizer,
               double split, std::int64_t context, std::int64_t vocab)
      : training_(std::move(training)),
        validation_(std::move(validation)),
        tokenizer_(std::move(tokenizer)),
        context_(context),
        vocab_(vocab) {
    const std::string& source = training_.stream.source();
    if (validation_) {
      split_ = {training_.stream.tokens(), validation_->stream.tokens()};
      with_name(training_.name, [&] { data::require_context(split_.training, context, fmt::format("'{}'", source)); });
      with_name(validation_->name, [&] {
        data::require_context(split_.validation, context, fmt::format("'{}'", validation_->stream.source()));
      });
      return;
    }
    constexpr std::string_view remedy = ", or another [data] split";
    with_name(training_.name, [&] {
      split_ = data::split_tokens(training_.stream, split);
      data::require_context(split_.training, context, fmt::format("the training part of '{}'", source), remedy);
      if (!split_.validation.empty()) {
        data::require_context(split_.validation, context, fmt::format("the validation part of '{}'", source), remedy);
      }
    });
  }

  [[nodiscard]] models::DataShape shape() const override { return {.vocab = vocab_}; }
  [[nodiscard]] const data::Tokenizer* tokenizer() const noexcept override {
    return tokenizer_ ? &*tokenizer_ : nullptr;
  }
  [[nodiscard]] std::int64_t tokens_per_sample() const override { return context_; }

  [[nodiscard]] std::int64_t evaluation_samples() const override {
    return split_.validation.empty() ? 0 : data::evaluation_windows(split_.validation, context_);
  }

  /// A tokenizer makes no others.
  void check(int) const override {
    if (tokenizer_) {
      return;
    }
    with_name(training_.name, [&] { data::require_vocabulary(training_.stream, vocab_); });
    if (validation_) {
      with_name(validation_->name, [&] { data::require_vocabulary(validation_->stream, vocab_); });
    }
  }

  [[nodiscard]] std::string describe() const override {
    if (validation_) {
      return fmt::format("{}: {} training tokens, {}: {} validation tokens, {} distinct", training_.stream.source(),
                         split_.training.size(), validation_->stream.source(), split_.validation.size(), vocab_);
    }
    return fmt::format("{}: {} training and {} validation tokens, {} distinct", training_.stream.source(),
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
  NamedTokens training_;
  std::optional<NamedTokens> validation_;
  std::optional<data::Tokenizer> tokenizer_;
  data::TokenSplit split_;  ///< views into those
  std::int64_t context_;
  std::int64_t vocab_;
};

/// Arrays and the setting that names them.
struct NamedArrays {
  data::ArraySet set;
  Named name;
};

/// One row of either must be one row of the other.
void require_same_kind(const data::ArraySet& training, const data::ArraySet& validation) {
  const auto describe = [](const data::ArraySet& set) {
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
  /// Without `validation` the last rows of the training data are for that.
  ArrayDataset(NamedArrays training, std::optional<NamedArrays> validation)
      : training_(std::move(training)), validation_(std::move(validation)) {
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

  [[nodiscard]] models::DataShape shape() const override {
    return {.vocab = classes_, .features = set().features(), .outputs = set().outputs()};
  }
  [[nodiscard]] std::int64_t tokens_per_sample() const override { return 1; }
  [[nodiscard]] std::int64_t evaluation_samples() const override { return evaluated().rows() - first_evaluated(); }

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
                       evaluation_samples(), set().features(), targets);
  }

  void fill_training(std::uint64_t seed, std::int64_t first, const TensorView& inputs, const TensorView& targets,
                     std::size_t f32_bytes) const override {
    for_blocks(set(), first, inputs, targets, f32_bytes, [&](std::int64_t sample, std::span<std::int64_t> rows) {
      data::training_samples(set(), seed, sample, rows);
    });
  }

  void fill_evaluation(std::int64_t first, const TensorView& inputs, const TensorView& targets,
                       std::size_t f32_bytes) const override {
    for_blocks(evaluated(), first, inputs, targets, f32_bytes, [&](std::int64_t sample, std::span<std::int64_t> rows) {
      std::iota(rows.begin(), rows.end(), first_evaluated() + sample);
    });
  }

 private:
  [[nodiscard]] const data::ArraySet& set() const noexcept { return training_.set; }
  [[nodiscard]] const data::ArraySet& evaluated() const noexcept { return validation_ ? validation_->set : set(); }
  [[nodiscard]] std::int64_t first_evaluated() const noexcept { return validation_ ? 0 : set().training_rows(); }

  [[nodiscard]] static std::int64_t classes_of(const NamedArrays& arrays) {
    std::int64_t classes = 1;
    for (std::int64_t row = 0; row < arrays.set.rows(); ++row) {
      std::int32_t label = 0;
      arrays.set.fill_labels(std::span(&row, 1), std::span(&label, 1));
      classes = std::max<std::int64_t>(classes, std::int64_t{label} + 1);
    }
    with_name(arrays.name, [&] { arrays.set.require_labels_below(classes); });
    return classes;
  }

  /// Fills a block of samples at a time, whose row numbers fit on the stack.
  template <typename ChooseRows>
  static void for_blocks(const data::ArraySet& set, std::int64_t first, const TensorView& inputs,
                         const TensorView& targets, std::size_t f32_bytes, const ChooseRows& choose_rows) {
    std::array<std::int64_t, 64> rows = {};
    const std::int64_t samples = inputs.shape[0];
    for (std::int64_t done = 0; done < samples; done += static_cast<std::int64_t>(rows.size())) {
      const auto count =
          static_cast<std::size_t>(std::min<std::int64_t>(static_cast<std::int64_t>(rows.size()), samples - done));
      const std::span<std::int64_t> block(rows.data(), count);
      choose_rows(first + done, block);
      fill_reals(set, block, inputs, done, f32_bytes, &data::ArraySet::fill_features);
      if (set.has_labels()) {
        set.fill_labels(block, integers(targets).subspan(static_cast<std::size_t>(done), count));
      } else {
        fill_reals(set, block, targets, done, f32_bytes, &data::ArraySet::fill_targets);
      }
    }
  }

  /// Rows of reals, in the width of the device's f32 (only the reference device's has to be widened).
  static void fill_reals(const data::ArraySet& set, std::span<const std::int64_t> rows, const TensorView& view,
                         std::int64_t at, std::size_t f32_bytes,
                         void (data::ArraySet::*fill)(std::span<const std::int64_t>, std::span<float>) const) {
    const auto width = static_cast<std::size_t>(view.elements() / view.shape[0]);
    const std::size_t count = rows.size() * width;
    const std::size_t offset = static_cast<std::size_t>(at) * width;
    if (f32_bytes == sizeof(float)) {
      (set.*fill)(rows, {static_cast<float*>(view.data) + offset, count});
      return;
    }
    std::vector<float> narrow(count);
    (set.*fill)(rows, narrow);
    std::copy(narrow.begin(), narrow.end(), static_cast<double*>(view.data) + offset);
  }

  NamedArrays training_;
  std::optional<NamedArrays> validation_;
  std::int64_t classes_ = 0;
};

std::int64_t context_of(const job::Job& job) {
  if (!job.model.options.has("context")) {
    throw Error(ErrorCode::job, fmt::format("{}: model {} is not trained on tokens: use [data] arrays",
                                            job.where("model", "name"), job.model.name));
  }
  return job.model.options.integer("context");
}

Named name_of(const job::Job& job, std::string_view key) {
  return fmt::format("{}: [data] {}", job.where("data", key), key);
}

std::unique_ptr<Dataset> open_text(const job::Job& job) {
  const std::int64_t context = context_of(job);
  const auto kind =
      job.data.tokenizer == job::Tokenizer::byte ? data::TokenizerKind::byte : data::TokenizerKind::character;
  const Named name = name_of(job, "text");
  data::TokenizedText text = with_name(name, [&] { return data::read_text(job.data.text, kind); });
  std::optional<NamedTokens> validation;
  if (!job.data.validation_text.empty()) {
    const Named own = name_of(job, "validation_text");
    validation.emplace(
        NamedTokens{with_name(own, [&] { return data::read_text(job.data.validation_text, text.tokenizer); }), own});
  }
  const std::int64_t vocab = text.tokenizer.vocabulary();
  return std::make_unique<TokenDataset>(NamedTokens{std::move(text.stream), name}, std::move(validation),
                                        std::move(text.tokenizer), job.data.split, context, vocab);
}

std::unique_ptr<Dataset> open_tokens(const job::Job& job) {
  const std::int64_t context = context_of(job);
  const auto map = [&](std::string_view key, const std::filesystem::path& path) {
    const Named name = name_of(job, key);
    return NamedTokens{with_name(name, [&] { return data::TokenStream::map(path); }), name};
  };
  NamedTokens training = map("tokens", job.data.tokens);
  if (!job.model.options.has("vocab")) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [model] vocab is needed with [data] tokens: set it to the number of distinct "
                            "tokens",
                            job.where("data", "tokens")));
  }
  std::optional<NamedTokens> validation;
  if (!job.data.validation_tokens.empty()) {
    validation.emplace(map("validation_tokens", job.data.validation_tokens));
  }
  return std::make_unique<TokenDataset>(std::move(training), std::move(validation), std::nullopt, job.data.split,
                                        context, job.model.options.integer("vocab"));
}

NamedArrays open_pair(const job::Job& job, std::string_view key, const std::vector<std::filesystem::path>& paths,
                      double split) {
  if (paths.size() != 2) {
    throw Error(ErrorCode::job, fmt::format("{}: [data] {} needs two arrays, inputs and targets (x.npy, y.npy); found "
                                            "{}",
                                            job.where("data", key), key, paths.size()));
  }
  const Named name = name_of(job, key);
  return {with_name(name, [&] { return data::ArraySet(paths[0], paths[1], split); }), name};
}

std::unique_ptr<Dataset> open_arrays(const job::Job& job) {
  if (job.model.options.has("context")) {
    throw Error(ErrorCode::job, fmt::format("{}: model {} is trained on tokens: use [data] text or tokens",
                                            job.where("data", "arrays"), job.model.name));
  }
  std::optional<NamedArrays> validation;
  if (!job.data.validation_arrays.empty()) {
    validation.emplace(open_pair(job, "validation_arrays", job.data.validation_arrays, 1));
  }
  return std::make_unique<ArrayDataset>(open_pair(job, "arrays", job.data.arrays, validation ? 1 : job.data.split),
                                        std::move(validation));
}

}  // namespace

std::vector<std::filesystem::path> data_files(const job::DataSettings& data) {
  std::vector<std::filesystem::path> files;
  for (const auto* const arrays : {&data.arrays, &data.validation_arrays}) {
    files.insert(files.end(), arrays->begin(), arrays->end());
  }
  for (const auto* const file : {&data.text, &data.tokens, &data.validation_text, &data.validation_tokens}) {
    if (!file->empty()) {
      files.push_back(*file);
    }
  }
  return files;
}

std::unique_ptr<Dataset> open_dataset(const job::Job& job) {
  if (!job.data.arrays.empty()) {
    return open_arrays(job);
  }
  if (!job.data.text.empty()) {
    return open_text(job);
  }
  return job.data.tokens.empty() ? nullptr : open_tokens(job);
}

}  // namespace shardrun::task
