#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "core/data/data_files.h"
#include "core/data/sampler.h"
#include "core/data/text.h"
#include "core/data/tokens.h"
#include "core/device/host_tensor.h"

namespace shardrun::data {
namespace {

using device::TensorView;

/// Tokens, and the setting that names their file. If it is a text, load() makes the tokens.
class Tokens {
 public:
  Tokens(Named name, TokenStream stream)
      : name_(std::move(name)), source_(stream.source()), size_(stream.size()), stream_(std::move(stream)) {}
  Tokens(Named name, TextFile text)
      : name_(std::move(name)),
        source_(text.file().path().native()),
        size_(text.tokens()),
        tokenizer_(text.tokenizer()),
        fingerprint_(text.fingerprint()),
        host_bytes_(text.tokenised_bytes()),
        text_(std::move(text)) {}
  Tokens(Named name, TokenizedText text)
      : name_(std::move(name)),
        source_(text.stream.source()),
        size_(text.stream.size()),
        tokenizer_(std::move(text.tokenizer)),
        fingerprint_(std::move(text.fingerprint)),
        host_bytes_(text.stream.file().size()),
        stream_(std::move(text.stream)) {}

  [[nodiscard]] const Named& name() const noexcept { return name_; }
  [[nodiscard]] const std::string& source() const noexcept { return source_; }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] const std::optional<Tokenizer>& tokenizer() const noexcept { return tokenizer_; }
  [[nodiscard]] std::uint64_t host_bytes() const noexcept { return host_bytes_; }
  [[nodiscard]] std::uint64_t bytes_to_load() const noexcept { return text_ ? host_bytes_ : 0; }
  [[nodiscard]] std::string fingerprint() const {
    return fingerprint_.empty() ? stream().file().fingerprint() : fingerprint_;
  }

  [[nodiscard]] const TokenStream& stream() const {
    if (!stream_) {
      throw Error(ErrorCode::internal, fmt::format("'{}' was not tokenised yet", source_));
    }
    return *stream_;
  }

  void load() {
    if (text_) {
      with_name(name_, [&] { stream_ = read_tokenised(text_->tokenise()).stream; });
      text_.reset();
    }
  }

 private:
  Named name_;
  std::string source_;
  std::int64_t size_;
  std::optional<Tokenizer> tokenizer_;
  std::string fingerprint_;  ///< identifies a text; empty for token files
  std::uint64_t host_bytes_ = 0;
  std::optional<TextFile> text_;
  std::optional<TokenStream> stream_;
};

class TokenDataset final : public Dataset {
 public:
  /// `validation`: the validation data; nothing: a part of the training data is used, by [data] split.
  TokenDataset(Tokens training, std::optional<Tokens> validation, const job::DataSettings& settings,
               std::int64_t context, std::int64_t vocab)
      : training_(std::move(training)),
        validation_(std::move(validation)),
        eval_samples_(settings.eval_samples),
        context_(context),
        vocab_(vocab) {
    if (validation_) {
      split_ = {{0, training_.size()}, {0, validation_->size()}};
      for (const Tokens* const tokens : all()) {
        with_name(tokens->name(),
                  [&] { require_context(tokens->size(), context, fmt::format("'{}'", tokens->source())); });
      }
      return;
    }
    constexpr std::string_view remedy = ", or another [data] split";
    with_name(training_.name(), [&] {
      const std::string& source = training_.source();
      split_ = split_tokens(training_.size(), settings.split, source);
      require_context(split_.training.size, context, fmt::format("the training part of '{}'", source), remedy);
      if (split_.validation.size > 0) {
        require_context(split_.validation.size, context, fmt::format("the validation part of '{}'", source), remedy);
      }
    });
  }

  [[nodiscard]] workload::DataShape shape() const override { return {.vocab = vocab_}; }
  [[nodiscard]] const Tokenizer* tokenizer() const noexcept override {
    return training_.tokenizer() ? &*training_.tokenizer() : nullptr;
  }
  [[nodiscard]] std::int64_t tokens_per_sample() const override { return context_; }

  [[nodiscard]] std::int64_t evaluation_samples() const override {
    return evaluated_samples(eval_samples_, evaluation_windows(split_.validation.size, context_));
  }

  /// Reads token files. A text was already read as a whole when it was opened.
  void check(int) const override {
    if (tokenizer() != nullptr) {
      return;
    }
    for (const Tokens* const tokens : all()) {
      with_name(tokens->name(), [&] { require_tokens(tokens->stream()); });
    }
  }

  void load() override {
    training_.load();
    if (validation_) {
      validation_->load();
    }
  }

  [[nodiscard]] std::uint64_t host_bytes() const override {
    return training_.host_bytes() + (validation_ ? validation_->host_bytes() : 0);
  }
  [[nodiscard]] std::uint64_t bytes_to_load() const override {
    return training_.bytes_to_load() + (validation_ ? validation_->bytes_to_load() : 0);
  }

  [[nodiscard]] std::vector<const files::SteadyFile*> files() const override {
    std::vector<const files::SteadyFile*> files;
    for (const Tokens* const tokens : all()) {
      files.push_back(&tokens->stream().file());
    }
    return files;
  }
  [[nodiscard]] std::vector<std::string> fingerprints() const override {
    std::vector<std::string> fingerprints;
    for (const Tokens* const tokens : all()) {
      fingerprints.push_back(tokens->fingerprint());
    }
    return fingerprints;
  }

  [[nodiscard]] std::string describe() const override {
    const std::string kind = tokenizer() == nullptr
                                 ? fmt::format(" of {}, vocabulary {}", training_.stream().type(), vocab_)
                             : tokenizer()->kind() == TokenizerKind::file ? fmt::format(", vocabulary {}", vocab_)
                                                                          : fmt::format(", {} distinct", vocab_);
    if (validation_) {
      return fmt::format("{}: {} training tokens, {}: {} validation tokens{}", training_.source(), split_.training.size,
                         validation_->source(), split_.validation.size, kind);
    }
    return fmt::format("{}: {} training and {} validation tokens{}", training_.source(), split_.training.size,
                       split_.validation.size, kind);
  }

  void fill_training(std::uint64_t seed, std::int64_t first, const TensorView& inputs,
                     const TensorView& targets) const override {
    with_name(training_.name(), [&] {
      fill_samples({training_.stream(), split_.training, context_}, seed, first,
                   device::elements_of<std::int32_t>(inputs), device::elements_of<std::int32_t>(targets));
    });
  }

  void fill_evaluation(std::int64_t first, const TensorView& inputs, const TensorView& targets) const override {
    const Tokens& tokens = validation_ ? *validation_ : training_;
    with_name(tokens.name(), [&] {
      data::fill_evaluation({tokens.stream(), split_.validation, context_}, first,
                            device::elements_of<std::int32_t>(inputs), device::elements_of<std::int32_t>(targets));
    });
  }

 private:
  [[nodiscard]] std::vector<const Tokens*> all() const {
    return validation_ ? std::vector<const Tokens*>{&training_, &*validation_} : std::vector<const Tokens*>{&training_};
  }

  Tokens training_;
  std::optional<Tokens> validation_;
  TokenSplit split_;  ///< ranges of training_ and validation_
  std::int64_t eval_samples_;
  std::int64_t context_;
  std::int64_t vocab_;
};

std::int64_t context_of(const job::Job& job) {
  if (!job.model.options.has("context")) {
    throw Error(ErrorCode::job, fmt::format("{}: model {} is not trained on tokens: use [data] arrays",
                                            job.where("model", "name"), job.model.name));
  }
  return job.model.options.integer("context");
}

/// Opens a text. `maker`: the tokenizer, or the kind of tokenizer to make.
template <typename Maker>
Tokens open_one_text(const job::Job& job, DataFiles& files, std::string_view key, const std::filesystem::path& path,
                     const Maker& maker) {
  const Named name = name_of(job, key);
  return with_name(name, [&] {
    files::SteadyFile file = files.open(path);
    return files.are_given() ? Tokens(name, read_tokenised(std::move(file)))
                             : Tokens(name, TextFile(std::move(file), maker));
  });
}

/// Throws Error{data} for a .npy file if the job names another token type.
void require_same_type(const job::Job& job, const TokenStream& stream, std::size_t token_bytes) {
  if (job.is_given("data", "token_type") && stream.type() != fmt::format("uint{}", 8 * token_bytes)) {
    throw Error(ErrorCode::data, fmt::format("'{}' holds {}, and [data] token_type = uint{}: leave token_type out, a "
                                             ".npy file says what it holds",
                                             stream.source(), stream.type(), 8 * token_bytes));
  }
}

Tokens open_training_text(const job::Job& job, DataFiles& files) {
  const std::filesystem::path& tokenizer = job.data.tokenizer;
  if (tokenizer == "char" || tokenizer == "byte" || files.are_given()) {
    return open_one_text(job, files, "text", job.data.text,
                         tokenizer == "byte" ? TokenizerKind::byte : TokenizerKind::character);
  }
  return open_one_text(job, files, "text", job.data.text,
                       with_name(name_of(job, "tokenizer"), [&] { return Tokenizer::of_file(tokenizer); }));
}

}  // namespace

std::unique_ptr<Dataset> open_text(const job::Job& job, DataFiles& files) {
  const std::int64_t context = context_of(job);
  Tokens text = open_training_text(job, files);
  std::optional<Tokens> validation;
  if (!job.data.validation_text.empty()) {
    validation = open_one_text(job, files, "validation_text", job.data.validation_text, *text.tokenizer());
  }
  const std::int64_t vocab = text.tokenizer()->vocabulary();
  return std::make_unique<TokenDataset>(std::move(text), std::move(validation), job.data, context, vocab);
}

std::unique_ptr<Dataset> open_tokens(const job::Job& job, DataFiles& files) {
  const std::int64_t context = context_of(job);
  if (!job.model.options.has("vocab")) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [model] vocab is needed with [data] tokens: set it to the vocabulary that the tokens "
                            "were made with; it is more than the highest token",
                            job.where("data", "tokens")));
  }
  const std::int64_t vocab = job.model.options.integer("vocab");
  const std::size_t bytes = job.data.token_type == job::TokenType::uint32 ? 4 : 2;
  // The default token type can be wrong, so require_plausible_width() checks it. A job that names uint16 is believed.
  const bool is_surely_narrow = bytes == 2 && job.is_given("data", "token_type");
  const auto open = [&](std::string_view key, const std::filesystem::path& path) {
    const Named name = name_of(job, key);
    return with_name(name, [&] {
      TokenStream stream = TokenStream::of_file(files.open(path), vocab, bytes);
      if (stream.is_typed()) {
        require_same_type(job, stream, bytes);
      } else if (!is_surely_narrow) {
        require_plausible_width(stream);
      }
      return Tokens(name, std::move(stream));
    });
  };
  Tokens training = open("tokens", job.data.tokens);
  std::optional<Tokens> validation;
  if (!job.data.validation_tokens.empty()) {
    validation = open("validation_tokens", job.data.validation_tokens);
  }
  return std::make_unique<TokenDataset>(std::move(training), std::move(validation), job.data, context, vocab);
}

}  // namespace shardrun::data
