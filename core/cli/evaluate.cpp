#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/checkpoint/given_weights.h"
#include "core/checkpoint/weights.h"
#include "core/cli/applied_job.h"
#include "core/cli/run.h"
#include "core/compile/model.h"
#include "core/compile/plugins.h"
#include "core/files/atomic_file.h"
#include "core/files/mapped_file.h"
#include "core/files/scratch_folder.h"
#include "core/infer/evaluation.h"

namespace shardrun::cli {
namespace {

constexpr std::int64_t usual_context = 1024;
constexpr std::size_t most_bytes = std::size_t{4} << 30;  // size of the largest file that is read

/// The passages on which the model is evaluated, and the text or the questions to which they belong.
struct Evaluation {
  std::vector<infer::Passage> passages;
  std::vector<infer::Question> questions;  ///< the questions, without their passages; empty if a text is evaluated
  std::size_t bytes = 0;                   ///< size of the text
  std::int64_t tokens = 0;
};

std::vector<OptionSyntax> evaluate_options() {
  std::vector<OptionSyntax> options = {
      {.name = "text", .value = "FILE", .help = "the text whose perplexity is measured"},
      {.name = "choices",
       .value = "FILE",
       .help = "questions as JSON objects, one in a line: context, choices, answer"},
      {.name = "context",
       .value = "N",
       .help = fmt::format("the most tokens that the model sees at once (default {}, or the model's)", usual_context)},
      {.name = "stride",
       .value = "N",
       .help = "with --text, tokens from the beginning of a window to that of the next (default: half of the context)",
       .needs = {"text"}},
      {.name = "delimiter",
       .value = "TEXT",
       .help = "with --choices, what is between context and choice (default ' ')",
       .needs = {"choices"}},
      {.name = "scores",
       .value = "FILE",
       .help = "write the log-likelihoods of each window or question, as JSON objects"},
      needing("scores", replace_option()),
      {.name = "json", .help = "print the results as JSON"},
      set_option()};
  std::ranges::move(generating_options(), std::back_inserter(options));
  return options;
}

/// The lines of a file that are not empty, and their numbers.
std::vector<std::pair<std::int64_t, std::string>> lines_of(const std::filesystem::path& path) {
  std::istringstream text(files::read_text_file(path, most_bytes));
  std::vector<std::pair<std::int64_t, std::string>> lines;
  std::string line;
  for (std::int64_t number = 1; std::getline(text, line); ++number) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      lines.emplace_back(number, line);
    }
  }
  return lines;
}

Evaluation of_text(const std::filesystem::path& path, const infer::Language& language, std::int64_t context,
                   std::int64_t stride) {
  const std::string text = files::read_text_file(path, most_bytes);
  const std::vector<std::int32_t> tokens = language.encode_beginning(text);
  if (text.empty() || tokens.size() < 2) {
    throw Error(ErrorCode::data,
                fmt::format("{}: it has fewer than two tokens, and only a token behind another one has "
                            "a probability: give a longer text",
                            path.native()));
  }
  return {.passages = infer::windows(tokens, context, stride), .bytes = text.size(), .tokens = std::ssize(tokens)};
}

Evaluation of_questions(const std::filesystem::path& path, const infer::Language& language, std::string_view delimiter,
                        std::int64_t context) {
  Evaluation made;
  for (const auto& [number, line] : lines_of(path)) {
    try {
      infer::Question question = infer::read_question(line, language, delimiter, context);
      std::ranges::move(question.choices, std::back_inserter(made.passages));
      made.questions.push_back(std::move(question));
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}:{}: {}", path.native(), number, error.message()));
    }
  }
  if (made.questions.empty()) {
    throw Error(ErrorCode::data, fmt::format("{}: it has no question", path.native()));
  }
  return made;
}

/// Computes the log-likelihood of each passage by a job that only reads prompts. Returns the job's exit code.
int log_likelihoods(std::span<const std::string> words, const Parsed& parsed,
                    const std::vector<infer::Passage>& passages, std::int64_t context, bool is_hub,
                    std::vector<double>& sums) {
  const files::ScratchFolder scratch("shardrun-evaluate", "prompts");
  const std::filesystem::path prompts = scratch.path() / "prompts.jsonl";
  const std::filesystem::path answers = scratch.path() / "answers.jsonl";
  std::ofstream file(prompts);
  for (const infer::Passage& passage : passages) {
    file << infer::prompt_line(passage) << '\n';
  }
  file.close();
  if (!file) {
    throw Error(ErrorCode::io, fmt::format("cannot write '{}'", prompts.native()));
  }
  for (const std::string& setting : parsed.all("set")) {
    for (const char* const own : {"infer.from", "infer.to", "infer.tokens", "infer.prompt_logprobs", "infer.context"}) {
      if (setting.starts_with(fmt::format("{}=", own))) {
        throw Error(ErrorCode::usage, fmt::format("--set {}: evaluate sets {} itself: leave it out", setting, own));
      }
    }
  }
  const std::string tokens = fmt::format("{}", context);
  std::vector<std::pair<std::string, std::string>> settings = {
      {"infer.from", prompts.native()},
      {"infer.to", answers.native()},
      {"infer.context", tokens},
      {"infer.tokens", "1"},
      {"infer.prompt_logprobs", "true"},
      // Each passage is read in whole chunks; those of questions are short, and share what they begin with.
      {"infer.chunk", fmt::format("{}", std::min<std::int64_t>(parsed.has("text") ? 128 : 32, context))},
      {"infer.slots", "2"},  // prompts are read one by one; a second slot keeps pages that they share
      {"job.threads", "1"},
      {"job.output", (scratch.path() / "run").native()}};
  if (is_hub) {  // by default, a job builds such a model with a shorter context than this one
    settings.emplace_back("model.context", tokens);
  }
  const int code = run_quietly("evaluate", words, checked_job(parsed, generating_job(parsed, "evaluate", settings)));
  if (code == 0) {
    for (const auto& [number, line] : lines_of(answers)) {
      sums.push_back(infer::log_likelihood(line));
    }
  }
  return code;
}

/// The share of questions that were answered right, and the standard error of this share; 0 for a single question.
struct Accuracy {
  double share;
  double error;

  Accuracy(std::int64_t right, std::int64_t count)
      : share(static_cast<double>(right) / static_cast<double>(count)),
        error(count > 1 ? std::sqrt(share * (1 - share) / static_cast<double>(count - 1)) : 0) {}
};

std::string tell_text(const Evaluation& evaluation, const std::vector<double>& sums, std::int64_t context, bool as_json,
                      std::string& items) {
  double nll = 0;
  std::int64_t scored = 0;
  for (std::size_t w = 0; w < sums.size(); ++w) {
    const infer::Passage& window = evaluation.passages[w];
    nll -= sums[w];
    scored += window.scored();
    items += boost::json::serialize(
                 boost::json::object{{"window", w}, {"tokens", window.scored()}, {"log_likelihood", sums[w]}}) +
             "\n";
  }
  const double of_token = std::exp(nll / static_cast<double>(scored));
  const double bits = nll / std::numbers::ln2 / static_cast<double>(evaluation.bytes);
  if (as_json) {
    return boost::json::serialize(boost::json::object{{"tokens", evaluation.tokens},
                                                      {"scored", scored},
                                                      {"bytes", evaluation.bytes},
                                                      {"windows", sums.size()},
                                                      {"context", context},
                                                      {"log_likelihood", -nll},
                                                      {"perplexity", of_token},
                                                      {"byte_perplexity", std::exp2(bits)},
                                                      {"bits_per_byte", bits}});
  }
  return fmt::format(
      "perplexity {:.4f} a token, {:.4f} a byte ({:.4f} bits per byte): {} of {} bytes, in {} of at most {}", of_token,
      std::exp2(bits), bits, counted(scored, "token"), evaluation.bytes, counted(std::ssize(sums), "window"),
      counted(context, "token"));
}

std::string tell_questions(const Evaluation& evaluation, const std::vector<double>& sums, bool as_json,
                           std::string& items) {
  std::int64_t right = 0;
  std::int64_t right_of_length = 0;
  std::size_t at = 0;
  for (const infer::Question& question : evaluation.questions) {
    const std::span<const double> scores = std::span(sums).subspan(at, question.characters.size());
    at += scores.size();
    std::vector<double> of_length;
    for (std::size_t c = 0; c < scores.size(); ++c) {
      of_length.push_back(scores[c] / static_cast<double>(question.characters[c]));
    }
    right += infer::best(scores) == question.answer ? 1 : 0;
    right_of_length += infer::best(of_length) == question.answer ? 1 : 0;
    items += boost::json::serialize(
                 boost::json::object{{"log_likelihoods", boost::json::array(scores.begin(), scores.end())},
                                     {"choice", infer::best(scores)},
                                     {"choice_by_length", infer::best(of_length)},
                                     {"answer", question.answer}}) +
             "\n";
  }
  const std::int64_t count = std::ssize(evaluation.questions);
  const Accuracy plain(right, count);
  const Accuracy normalised(right_of_length, count);
  if (as_json) {
    return boost::json::serialize(boost::json::object{{"questions", count},
                                                      {"accuracy", plain.share},
                                                      {"accuracy_error", plain.error},
                                                      {"accuracy_by_length", normalised.share},
                                                      {"accuracy_by_length_error", normalised.error}});
  }
  return fmt::format("{} of {} right: accuracy {:.4f} ± {:.4f}; by log-likelihood per character {:.4f} ± {:.4f}", right,
                     counted(count, "question"), plain.share, plain.error, normalised.share, normalised.error);
}

/// Throws Error{usage} for options that are missing or contradict each other.
void require_sense(const Parsed& parsed) {
  if (parsed.has("text") == parsed.has("choices")) {
    throw Error(ErrorCode::usage, fmt::format("evaluate: expected one of --text and --choices, found {}",
                                              parsed.has("text") ? "both" : "neither"));
  }
  if (const std::optional<std::string> scores = parsed.get("scores")) {
    require_new(parsed, *scores);
  }
}

int evaluate(std::span<const std::string> words) {
  const Parsed parsed = parse("evaluate", words, evaluate_options(), 1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  require_sense(parsed);
  const std::vector<std::filesystem::path> folders = given_plugins(parsed);
  const checkpoint::GivenWeights given(parsed.positional[0], compile::models_in(compile::directories_of(folders)));
  given.check();
  const checkpoint::TrainedModel trained =
      checkpoint::read_model(given.source(), compile::models_in(compile::directories_of(folders)));
  require_generating(trained, parsed.positional[0]);
  if (!trained.tokenizer) {
    throw Error(ErrorCode::usage,
                fmt::format("'{}' has no tokenizer, so a text cannot become tokens: give a model with "
                            "one",
                            parsed.positional[0]));
  }
  const infer::Language language(trained.tokenizer, given.is_hub() ? parsed.positional[0] : "");
  const std::int64_t most = given.known_context().value_or(trained.settings.options.integer("context"));
  const std::int64_t context = parsed.integer("context", std::min(most, usual_context), 2, most);
  const Evaluation evaluation =
      parsed.has("text")
          ? of_text(*parsed.get("text"), language, context, parsed.integer("stride", context / 2, 1, context - 1))
          : of_questions(*parsed.get("choices"), language, parsed.get("delimiter").value_or(" "), context);
  std::vector<double> sums;
  if (const int code = log_likelihoods(words, parsed, evaluation.passages, context, given.is_hub(), sums); code != 0) {
    return code;
  }
  std::string items;
  const bool as_json = parsed.has("json");
  fmt::print("{}\n", parsed.has("text") ? tell_text(evaluation, sums, context, as_json, items)
                                        : tell_questions(evaluation, sums, as_json, items));
  if (const std::optional<std::string> scores = parsed.get("scores")) {
    files::AtomicFile file(*scores);
    file.write(std::as_bytes(std::span(items)));
    file.commit();
  }
  return 0;
}

const RegisterCommand evaluate_command(
    {.name = "evaluate",
     .arguments = "RUN|FOLDER|FILE.gguf",
     .help = "measure a model: the perplexity of a text, or how often it chooses the right answer",
     .run = evaluate});

}  // namespace
}  // namespace shardrun::cli
