#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "core/base/error.h"
#include "core/checkpoint/weights.h"
#include "core/cli/options.h"
#include "core/compile/model.h"
#include "core/compile/plugins.h"
#include "core/job/raw.h"
#include "core/metrics/run_files.h"
#include "core/workload/program.h"
#include "core/partition/partition.h"
#include "core/train/sampling.h"

namespace shardrun::cli {
namespace {

std::filesystem::path weights_path(const std::filesystem::path& given) {
  if (!std::filesystem::is_directory(given)) {
    return given;
  }
  const std::filesystem::path weights = metrics::weights_path(given);
  if (!std::filesystem::exists(weights) && std::filesystem::exists(metrics::state_path(given))) {
    throw Error(ErrorCode::usage,
                fmt::format("'{}' is the folder of an iterated run ([job] task = iterate): it has a state, "
                            "state.safetensors, and no weights to sample from; name the folder of a trained run",
                            given.string()));
  }
  return weights;
}

/// Where the plugins of a run's folder are: where its job searched. A weights file has no job.
plugins::Directories directories_of_run(const std::filesystem::path& given) {
  const std::filesystem::path job = metrics::job_path(given);
  return compile::directories_of(std::filesystem::is_regular_file(job) ? job::plugin_path(job::read_job_file(job))
                                                                       : std::vector<std::filesystem::path>());
}

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
void print_token(const std::optional<data::Tokenizer>& tokenizer, std::int32_t token) {
  std::string text;
  if (tokenizer) {
    tokenizer->decode(token, text);
  } else {
    text = fmt::format("{} ", token);
  }
  fmt::print("{}", text);
  std::fflush(stdout);
}

std::vector<std::int32_t> encode(const std::optional<data::Tokenizer>& tokenizer, const std::string& prompt) {
  if (!tokenizer) {
    if (!prompt.empty()) {
      throw Error(ErrorCode::usage,
                  "--prompt: the model was trained on numbered tokens and has no tokenizer: leave the prompt out");
    }
    return {0};
  }
  const std::vector<std::uint16_t> tokens = tokenizer->encode(prompt);
  return {tokens.begin(), tokens.end()};
}

int generate(std::span<const std::string> words) {
  const Parsed parsed =
      parse("generate", words,
            {{.name = "prompt", .value = "TEXT", .help = "text to continue (default: the end of a line)"},
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
  const checkpoint::SafetensorsFile file(weights_path(parsed.positional[0]));
  const checkpoint::TrainedModel trained =
      checkpoint::read_model(file, compile::models_in(directories_of_run(parsed.positional[0])));
  const graph::Graph graph = workload::build_prediction(trained.model, trained.settings);
  settings.vocabulary = trained.tokenizer ? trained.tokenizer->vocabulary() : 0;
  const std::string prompt = parsed.get("prompt").value_or(trained.tokenizer ? "\n" : "");
  const std::vector<std::int32_t> tokens = encode(trained.tokenizer, prompt);

  const device::Device& cpu = device::Device::find("cpu");
  runtime::Executor executor(partition::programs_of(graph, cpu, threads), cpu);
  checkpoint::load_parameters(file, graph, executor);
  for (const std::int32_t token : tokens) {
    print_token(trained.tokenizer, token);
  }
  train::sample(executor, tokens, settings, [&](std::int32_t token) { print_token(trained.tokenizer, token); });
  fmt::print("\n");
  return 0;
}

const RegisterCommand generate_command({.name = "generate",
                                        .arguments = "RUN",
                                        .help = "sample from a finished run's folder or weights file",
                                        .run = generate});

}  // namespace
}  // namespace shardrun::cli
