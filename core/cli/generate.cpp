#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/standard_error.h"
#include "core/checkpoint/given_weights.h"
#include "core/checkpoint/weights.h"
#include "core/cli/options.h"
#include "core/compile/model.h"
#include "core/compile/plugins.h"
#include "core/job/raw.h"
#include "core/metrics/run_files.h"
#include "core/partition/partition.h"
#include "core/train/sampling.h"
#include "core/workload/program.h"
#include "core/workload/program.h"

namespace shardrun::cli {
namespace {

/// With temperature 0 nothing is drawn.
void require_effect(const Parsed& parsed, const train::SamplingSettings& settings) {
  for (const char* option : {"top-k", "seed"}) {
    if (settings.temperature == 0 && parsed.has(option)) {
      throw Error(ErrorCode::usage, fmt::format("--{} has no effect with --temperature 0, which always takes the "
                                                "likeliest token: leave out one of them",
                                                option));
    }
  }
}

/// Prints whole characters on a terminal; tokens as numbers without a tokenizer.
void print_token(std::optional<data::Decoder>& decoder, std::int32_t token) {
  std::string text;
  if (decoder) {
    decoder->decode(token, text);
  } else {
    text = fmt::format("{} ", token);
  }
  fmt::print("{}", text);
  std::fflush(stdout);
}

/// The tokens of a prompt such as "17 4 250", for a model without a tokenizer; token 0 for an empty one.
std::vector<std::int32_t> numbers_of(const std::string& prompt, std::int64_t vocab) {
  std::vector<std::int32_t> tokens;
  const char* const end = prompt.data() + prompt.size();
  for (const char* at = prompt.data(); at != end;) {
    if (*at == ' ' || *at == ',' || *at == '\n' || *at == '\t') {
      ++at;
      continue;
    }
    std::int32_t token = 0;
    const auto [rest, fault] = std::from_chars(at, end, token);
    if (fault != std::errc() || token < 0 || token >= vocab ||
        (rest != end && std::string_view(" ,\n\t").find(*rest) == std::string_view::npos)) {
      throw Error(
          ErrorCode::usage,
          fmt::format("--prompt: the model was trained on numbered tokens and has no tokenizer: expected numbers "
                      "from 0 to {}, such as \"17 4 250\", found '{}' at byte {}",
                      vocab - 1, std::string_view(at, std::min<std::size_t>(static_cast<std::size_t>(end - at), 20)),
                      at - prompt.data()));
    }
    tokens.push_back(token);
    at = rest;
  }
  return tokens.empty() ? std::vector<std::int32_t>{0} : tokens;
}

std::vector<std::int32_t> encode(const std::optional<data::Tokenizer>& tokenizer, const std::string& prompt,
                                 std::int64_t vocab) {
  if (!tokenizer) {
    return numbers_of(prompt, vocab);
  }
  return tokenizer->encode(prompt);
}

/// A model that others trained knows more tokens than are needed, and each takes the time of all.
void take_needed_context(checkpoint::TrainedModel& trained, const std::string& prompt, std::int64_t tokens) {
  constexpr std::int64_t step = 16;
  OptionValues& options = trained.settings.options;
  const auto prompted =
      static_cast<std::int64_t>(trained.tokenizer ? trained.tokenizer->encode(prompt).size() : prompt.size());
  const std::int64_t needed = (prompted + tokens + step - 1) / step * step;
  options.set("context", std::min(options.integer("context"), std::max(needed, step)));
}

int generate(std::span<const std::string> words) {
  const Parsed parsed = parse(
      "generate", words,
      {{.name = "prompt",
        .value = "TEXT",
        .help = "text to continue (default: the end of a line); of a model without a tokenizer, numbers of tokens"},
       {.name = "tokens", .value = "N", .help = "number of tokens to sample (default 500)"},
       {.name = "temperature",
        .value = "T",
        .help = "0: always the likeliest token; 1: the model's own distribution (default 0.8)"},
       {.name = "top-k", .value = "K", .help = "draw only from the K likeliest tokens (default 0: all)"},
       {.name = "seed", .value = "S", .help = "seed of the random draws (default 1337)"},
       {.name = "threads", .value = "N", .help = "threads to compute with (default 1)"}},
      1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  train::SamplingSettings settings{.tokens = parsed.integer("tokens", 500, 0, 1'000'000'000),
                                   .temperature = parsed.real("temperature", 0.8, 0, 1000),
                                   .top_k = parsed.integer("top-k", 0, 0, 1'000'000),
                                   .seed = static_cast<std::uint64_t>(parsed.integer("seed", 1337, 0, INT64_MAX))};
  require_effect(parsed, settings);
  const int threads = static_cast<int>(parsed.integer("threads", 1, 1, 1024));
  const checkpoint::GivenWeights given(parsed.positional[0], compile::models_in(compile::directories_of({})));
  given.check();
  if (given.chosen()) {
    write_to_standard_error(
        fmt::format("samples from the checkpoint of step {}: '{}'\n", given.step(), given.chosen()->native()));
  }
  const std::optional<job::RawJob> job = given.job();  // a weights file has none, and no folders of plugins
  const plugins::Directories directories =
      compile::directories_of(job ? job::plugin_path(*job) : std::vector<std::filesystem::path>());
  checkpoint::TrainedModel trained = checkpoint::read_model(given.source(), compile::models_in(directories));
  const std::string prompt = parsed.get("prompt").value_or(trained.tokenizer ? "\n" : "");
  if (given.is_hub()) {
    take_needed_context(trained, prompt, settings.tokens);
  }
  const graph::Graph graph = workload::build_prediction(trained.model, trained.settings);
  settings.vocabulary = trained.tokenizer ? trained.tokenizer->vocabulary() : 0;
  const device::Device& cpu = device::Device::find("cpu");
  runtime::Executor executor(partition::programs_of(graph, cpu, threads), cpu);
  checkpoint::load_parameters(given.source(), graph, executor);
  const std::int64_t vocab = executor.output(executor.find(workload::predict_function, 1), "logits").elements();
  const std::vector<std::int32_t> tokens = encode(trained.tokenizer, prompt, vocab);
  std::optional<data::Decoder> decoder;
  if (trained.tokenizer) {
    decoder.emplace(*trained.tokenizer);
  }
  for (const std::int32_t token : tokens) {
    print_token(decoder, token);
  }
  train::sample(executor, tokens, settings, [&](std::int32_t token) { print_token(decoder, token); });
  std::string rest;
  if (decoder) {
    decoder->finish(rest);
  }
  fmt::print("{}\n", rest);
  return 0;
}

const RegisterCommand generate_command({.name = "generate",
                                        .arguments = "RUN|FOLDER|FILE.gguf",
                                        .help = "sample from a run's folder, a weights file, a checkpoint, a folder of "
                                                "Hugging Face's libraries, or a GGUF file",
                                        .run = generate});

}  // namespace
}  // namespace shardrun::cli
