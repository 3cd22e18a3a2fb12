#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "core/data/data_files.h"
#include "core/data/finite.h"
#include "core/data/npy.h"
#include "core/device/elements.h"

namespace shardrun::data {
namespace {

using device::TensorView;

/// An array whose rows are samples without targets.
class InputDataset final : public Dataset {
 public:
  /// `context`: tokens per sample; 0: samples are real numbers. `vocab`: the vocabulary of the tokens; 0: unknown.
  InputDataset(Named name, files::SteadyFile file, std::int64_t context, std::int64_t vocab)
      : name_(std::move(name)),
        array_(with_name(name_, [&] { return NpyArray(std::move(file)); })),
        context_(context),
        vocab_(vocab) {
    with_name(name_, [&] { require_samples(); });
    width_ = array_.elements() / array_.shape()[0];
  }

  [[nodiscard]] workload::DataShape shape() const override {
    return context_ > 0 ? workload::DataShape{.vocab = vocab_} : workload::DataShape{.features = width_};
  }
  [[nodiscard]] std::int64_t evaluation_samples() const override { return array_.shape()[0]; }
  [[nodiscard]] std::int64_t tokens_per_sample() const override { return std::max<std::int64_t>(context_, 1); }
  [[nodiscard]] std::vector<const files::SteadyFile*> files() const override { return {&array_.file()}; }

  void check(int threads) const override {
    with_name(name_, [&] {
      if (context_ == 0) {
        return require_finite(array_, threads);
      }
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(context_));
      for (std::int64_t sample = 0; sample < evaluation_samples(); ++sample) {
        read_tokens(sample, tokens);
      }
    });
  }

  [[nodiscard]] std::string describe() const override {
    return fmt::format("{}: {} samples of {} {}", array_.path().native(), evaluation_samples(), width_,
                       context_ > 0 ? "tokens" : "features");
  }

  void fill_training(std::uint64_t, std::int64_t, const TensorView&, const TensorView&) const override {
    throw Error(ErrorCode::internal, fmt::format("'{}' has no targets to train on", array_.path().native()));
  }

  void fill_evaluation(std::int64_t first, const TensorView& inputs, const TensorView& /*targets*/) const override {
    with_name(name_, [&] {
      if (context_ > 0) {
        read_tokens(first, device::elements_of<std::int32_t>(inputs));
      } else if (inputs.dtype == graph::DType::f32) {
        array_.read(first * width_, device::elements_of<float>(inputs));
      } else {
        std::vector<float> read(static_cast<std::size_t>(inputs.elements()));
        array_.read(first * width_, read);
        std::vector<double> values(read.begin(), read.end());
        device::write_elements(inputs, 0, values);
      }
      array_.file().require_unchanged();
    });
  }

 private:
  void require_samples() const {
    const std::vector<std::int64_t>& shape = array_.shape();
    const bool are_tokens = context_ > 0;
    const bool fits =
        are_tokens ? shape.size() == 2 && shape[1] == context_ && can_be_token(array_.type()) : !shape.empty();
    if (!fits || array_.elements() == 0) {
      throw Error(
          ErrorCode::data,
          fmt::format("'{}' is {} of shape ({}): expected {}", array_.path().native(), to_string(array_.type()),
                      fmt::join(shape, ", "),
                      are_tokens ? fmt::format("integers of shape (n, {0}), a sequence of [model] context = {0} "
                                               "tokens in each row",
                                               context_)
                                 : "numbers of shape (n, ...), a sample in each row"));
    }
  }

  /// Reads the tokens of samples from index `first` on. Throws Error{data} for a token outside of the vocabulary.
  void read_tokens(std::int64_t first, std::span<std::int32_t> to) const {
    std::array<std::int64_t, 1024> block = {};
    for (std::size_t done = 0; done < to.size();) {
      const std::span<std::int64_t> tokens = std::span(block).first(std::min(block.size(), to.size() - done));
      const std::int64_t from = first * context_ + static_cast<std::int64_t>(done);
      array_.read(from, tokens);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] < 0 || tokens[i] > last_token()) {
          refuse_token(from + static_cast<std::int64_t>(i), tokens[i]);
        }
        to[done + i] = static_cast<std::int32_t>(tokens[i]);
      }
      done += tokens.size();
    }
  }

  [[noreturn]] void refuse_token(std::int64_t place, std::int64_t token) const {
    array_.file().require_unchanged();
    throw Error(ErrorCode::data,
                fmt::format("'{}': the token in row {}, column {} (counted from 0) is {}: the model has "
                            "tokens 0 to {}",
                            array_.path().native(), place / context_, place % context_, token, last_token()));
  }

  [[nodiscard]] std::int64_t last_token() const {
    return vocab_ > 0 ? vocab_ - 1 : std::numeric_limits<std::int32_t>::max();
  }

  Named name_;
  NpyArray array_;
  std::int64_t context_;
  std::int64_t vocab_;
  std::int64_t width_ = 0;  ///< numbers per sample
};

}  // namespace

std::unique_ptr<Dataset> open_inputs(const job::Job& job, DataFiles& files, std::optional<std::int64_t> vocab) {
  const Named name = fmt::format("{}: [infer] from", job.where("infer", "from"));
  return std::make_unique<InputDataset>(name, with_name(name, [&] { return files.open(job.infer.from); }),
                                        vocab ? job.model.options.integer("context") : 0, vocab.value_or(0));
}

}  // namespace shardrun::data
