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
#include "core/template/chat.h"
#include "core/train/sampling.h"
#include "core/workload/program.h"

namespace shardrun::cli {
namespace {

/// Throws for options that have no effect: with temperature 0, no random numbers are drawn.
void require_effect(const Parsed& parsed, const train::SamplingSettings& settings) {
  for (const char* option : {"top-k", "seed"}) {
    if (settings.temperature == 0 && parsed.has(option)) {
      throw Error(ErrorCode::usage, fmt::format("--{} has no effect with --temperature 0, which always takes the "
                                                "likeliest token: leave out one of them",
                                                option));
    }
  }
}

/// Prints a token as text, on a terminal in whole characters. Without a tokenizer it prints the token's number.
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

/// The tokens of a prompt such as "17 4 250", for a model without a tokenizer; token 0 for an empty prompt.
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

/// The token with this text. `tokens`: the object in which `name` gives the text. Nothing if there is none.
std::optional<std::int32_t> token_of(const text::BpeTokenizer& tokenizer, const boost::json::object& tokens,
                                     std::string_view name) {
  const boost::json::value* const text = tokens.if_contains(name);
  return text == nullptr ? std::nullopt : tokenizer.find(text->get_string());
}

/// The tokens of a text for a Hugging Face model, including the special tokens that its tokenizer puts around texts.
std::vector<std::int32_t> encode_whole(const data::Tokenizer& tokenizer, const templates::ChatFormat& format,
                                       const std::string& prompt) {
  std::vector<std::int32_t> tokens = tokenizer.encode(prompt);
  const text::BpeTokenizer& file = *tokenizer.file();
  std::vector<std::int32_t> before = file.before();
  std::vector<std::int32_t> behind = file.behind();
  if (format.adds_bos || format.adds_eos) {  // tokenizer_config.json takes precedence, as in transformers
    const auto only = [&](const std::optional<bool>& adds, std::string_view name) {
      const std::optional<std::int32_t> token = token_of(file, format.special_tokens, name);
      return adds.value_or(false) && token ? std::vector<std::int32_t>{*token} : std::vector<std::int32_t>();
    };
    before = only(format.adds_bos, "bos_token");
    behind = only(format.adds_eos, "eos_token");
  }
  tokens.insert(tokens.begin(), before.begin(), before.end());
  tokens.insert(tokens.end(), behind.begin(), behind.end());
  return tokens;
}

/// The tokens at which a Hugging Face model's answer ends.
std::vector<std::int64_t> end_tokens_of(const data::Tokenizer& tokenizer, const templates::ChatFormat& format) {
  std::vector<std::int64_t> ends = format.end_tokens;
  if (const std::optional<std::int32_t> token = token_of(*tokenizer.file(), format.special_tokens, "eos_token")) {
    ends.push_back(*token);
  }
  return ends;
}

/// The conversation of --system and --message as one text, by the model's chat template.
std::string conversation_text(const Parsed& parsed, const templates::ChatFormat& format) {
  templates::Conversation conversation;
  for (const char* role : {"system", "message"}) {
    if (const std::optional<std::string> text = parsed.get(role)) {
      conversation.messages.push_back(
          {{"role", role == std::string_view("message") ? "user" : role}, {"content", *text}});
    }
  }
  return templates::render_chat(format, conversation);
}

/// Reduces the model's context to the positions that are needed, because each position takes time and models of others
/// may have long contexts. `prompted`: the number of tokens of the prompt.
void take_needed_context(checkpoint::TrainedModel& trained, std::size_t prompted, std::int64_t tokens) {
  constexpr std::int64_t step = 16;
  OptionValues& options = trained.settings.options;
  const std::int64_t needed = (static_cast<std::int64_t>(prompted) + tokens + step - 1) / step * step;
  options.set("context", std::min(options.integer("context"), std::max(needed, step)));
}

/// Throws Error{usage} if --message or --system are given without effect.
void require_chat(const Parsed& parsed, bool is_hub, bool has_tokenizer) {
  if (parsed.has("system") && !parsed.has("message")) {
    throw Error(ErrorCode::usage, "--system has no effect without --message: give the message, too");
  }
  if (parsed.has("message") && parsed.get("message")->empty()) {
    throw Error(ErrorCode::usage, "--message: expected what the user says, found an empty text: give a text");
  }
  if (parsed.has("message") && parsed.has("prompt")) {
    throw Error(ErrorCode::usage, "--message and --prompt both say what the model reads: leave out one of them");
  }
  if (parsed.has("message") && !(is_hub && has_tokenizer)) {
    throw Error(ErrorCode::usage,
                "--message needs a folder of Hugging Face's libraries, or a GGUF file, with a tokenizer and a chat "
                "template: give other models their text with --prompt");
  }
}

int generate(std::span<const std::string> words) {
  const Parsed parsed = parse(
      "generate", words,
      {{.name = "prompt",
        .value = "TEXT",
        .help = "text to continue (default: the end of a line); of a model without a tokenizer, numbers of tokens"},
       {.name = "message",
        .value = "TEXT",
        .help = "what the user says, in the words of the model's chat template; the answer is printed"},
       {.name = "system", .value = "TEXT", .help = "with --message, what the model is told before"},
       {.name = "tokens",
        .value = "N",
        .help = "number of tokens to sample (default 500); a model of a folder may end before"},
       {.name = "temperature",
        .value = "T",
        .help = "0: always the likeliest token; 1: the model's own distribution (default 0.8)"},
       {.name = "top-k", .value = "K", .help = "draw only from the K likeliest tokens (default 0: all)"},
       {.name = "seed", .value = "S", .help = "seed of the random draws (default 1337)"},
       {.name = "threads", .value = "N", .help = "threads to compute with (default 1)"},
       plugins_option()},
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
  std::vector<std::filesystem::path> folders = given_plugins(parsed);
  const checkpoint::GivenWeights given(parsed.positional[0], compile::models_in(compile::directories_of(folders)));
  given.check();
  if (given.chosen()) {
    write_to_standard_error(
        fmt::format("samples from the checkpoint of step {}: '{}'\n", given.step(), given.chosen()->native()));
  }
  if (const std::optional<job::RawJob> job = given.job()) {  // a weights file has none
    std::ranges::copy(job::plugin_path(*job), std::back_inserter(folders));
  }
  checkpoint::TrainedModel trained =
      checkpoint::read_model(given.source(), compile::models_in(compile::directories_of(folders)));
  require_chat(parsed, given.is_hub(), trained.tokenizer && trained.tokenizer->file() != nullptr);
  const std::string prompt = parsed.get("prompt").value_or(trained.tokenizer ? "\n" : "");
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> ends;
  if (given.is_hub() && trained.tokenizer) {
    const templates::ChatFormat format = templates::read_chat_format(parsed.positional[0]);
    tokens = parsed.has("message") ? trained.tokenizer->encode(conversation_text(parsed, format))
                                   : encode_whole(*trained.tokenizer, format, prompt);
    ends = end_tokens_of(*trained.tokenizer, format);
  } else if (trained.tokenizer) {
    tokens = trained.tokenizer->encode(prompt);
  }
  if (given.is_hub()) {
    take_needed_context(trained, trained.tokenizer ? tokens.size() : prompt.size(), settings.tokens);
  }
  const graph::Graph graph = workload::build_prediction(trained.model, trained.settings);
  settings.vocabulary = trained.tokenizer ? trained.tokenizer->vocabulary() : 0;
  const device::Device& cpu = device::Device::find("cpu");
  runtime::Executor executor(partition::programs_of(graph, cpu, threads), cpu);
  checkpoint::load_parameters(given.source(), graph, executor);
  const std::int64_t vocab = executor.output(executor.find(workload::predict_function, 1), "logits").elements();
  if (!trained.tokenizer) {
    tokens = numbers_of(prompt, vocab);
  }
  std::optional<data::Decoder> decoder;
  if (trained.tokenizer) {
    decoder.emplace(*trained.tokenizer);
  }
  if (!parsed.has("message")) {
    for (const std::int32_t token : tokens) {
      print_token(decoder, token);
    }
  }
  bool has_ended = false;
  settings.goes_on = [&] { return !has_ended; };
  train::sample(executor, tokens, settings, [&](std::int32_t token) {
    has_ended = std::ranges::find(ends, token) != ends.end();
    if (!has_ended) {
      print_token(decoder, token);
    }
  });
  fmt::print("\n");  // bytes that wait for the rest of their character are left out
  return 0;
}

const RegisterCommand generate_command({.name = "generate",
                                        .arguments = "RUN|FOLDER|FILE.gguf",
                                        .help = "sample from a run's folder, a weights file, a checkpoint, a folder of "
                                                "Hugging Face's libraries, or a GGUF file",
                                        .run = generate});

}  // namespace
}  // namespace shardrun::cli
