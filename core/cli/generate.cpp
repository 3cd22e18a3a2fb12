#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

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
#include "core/cli/applied_job.h"
#include "core/cli/run.h"
#include "core/compile/model.h"
#include "core/compile/plugins.h"
#include "core/files/descriptor.h"
#include "core/infer/prompts.h"
#include "core/job/raw.h"
#include "core/metrics/run_files.h"
#include "core/partition/partition.h"
#include "core/template/chat.h"
#include "core/workload/program.h"

namespace shardrun::cli {
namespace {

/// Throws for options that have no effect: with temperature 0, no random numbers are drawn.
void require_effect(const Parsed& parsed, const infer::Sampling& settings) {
  for (const char* option : {"top-k", "top-p", "min-p", "seed"}) {
    if (settings.temperature == 0 && parsed.has(option)) {
      throw Error(ErrorCode::usage, fmt::format("--{} has no effect with --temperature 0, which always takes the "
                                                "likeliest token: leave out one of them",
                                                option));
    }
  }
}

/// Prints tokens as text, on a terminal in whole characters. Without a tokenizer it prints their numbers.
class Printer {
 public:
  explicit Printer(const std::optional<data::Tokenizer>& tokenizer) {
    if (tokenizer) {
      decoder_.emplace(*tokenizer);
    }
  }

  void print(std::int32_t token) {
    std::string text;
    if (decoder_) {
      decoder_->decode(token, text);
    } else {
      text = fmt::format("{} ", token);
    }
    fmt::print("{}", text);
    std::fflush(stdout);
  }

 private:
  std::optional<data::Decoder> decoder_;
};

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

/// The conversation of --system and --message.
templates::Conversation conversation_of(const Parsed& parsed) {
  templates::Conversation conversation;
  for (const char* role : {"system", "message"}) {
    if (const std::optional<std::string> text = parsed.get(role)) {
      conversation.messages.push_back(
          {{"role", role == std::string_view("message") ? "user" : role}, {"content", *text}});
    }
  }
  return conversation;
}

/// Reduces the model's context to the positions that are needed, because each position takes time and models of others
/// may have long contexts. `prompted`: the number of tokens of the prompt.
void take_needed_context(checkpoint::TrainedModel& trained, std::size_t prompted, std::int64_t tokens) {
  constexpr std::int64_t step = 16;
  OptionValues& options = trained.settings.options;
  const std::int64_t needed = (static_cast<std::int64_t>(prompted) + tokens + step - 1) / step * step;
  options.set("context", std::min(options.integer("context"), std::max(needed, step)));
}

/// Gives the model caches for a prompt and `tokens` more, if it can use them and its context is long enough.
bool take_caches(checkpoint::TrainedModel& trained, std::size_t prompted, std::int64_t tokens) {
  constexpr std::int64_t page = 16;
  const std::int64_t needed = static_cast<std::int64_t>(prompted) + tokens;
  if (!trained.model.decode || needed > trained.settings.options.integer("context")) {
    return false;
  }
  const std::int64_t pages = (needed + page - 1) / page;
  trained.settings.caches = {.pages = pages, .page = page, .of_sequence = pages};
  return true;
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

std::vector<OptionSyntax> generate_options() {
  std::vector<OptionSyntax> options = {
      {.name = "prompt",
       .value = "TEXT",
       .help = "text to continue (default: the end of a line); of a model without a tokenizer, numbers of tokens"},
      {.name = "message",
       .value = "TEXT",
       .help = "what the user says, in the words of the model's chat template; the answer is printed"},
      {.name = "system", .value = "TEXT", .help = "with --message, what the model is told before"},
      {.name = "prompts",
       .value = "FILE",
       .help = "prompts as JSON objects, one in a line; - is standard input. The answers are such objects, in order"},
      {.name = "to", .value = "FILE", .help = "the file of the answers to --prompts (default: standard output)"},
      {.name = "tokens",
       .value = "N",
       .help = "number of tokens to sample (default 500); a model of a folder may end before"},
      {.name = "temperature",
       .value = "T",
       .help = "0: always the likeliest token; 1: the model's own distribution (default 0.8)"},
      {.name = "top-k", .value = "K", .help = "draw only from the K likeliest tokens (default 0: all)"},
      {.name = "top-p",
       .value = "P",
       .help = "draw only from the fewest likeliest tokens that together have this probability (default 1: all)"},
      {.name = "min-p",
       .value = "P",
       .help = "draw only from tokens with at least this share of the highest probability (default 0: all)"},
      {.name = "seed", .value = "S", .help = "seed of the random draws (default 1337)"},
      {.name = "threads", .value = "N", .help = "threads of each rank to compute with (default 1)"},
      {.name = "ranks", .value = "N", .help = "ranks to compute with, in place of the run's"},
      {.name = "strategy", .value = "NAME", .help = "the strategy in place of the run's, without its [mesh]"},
      {.name = "transport", .value = "NAME", .help = "the transport in place of the run's"},
      plugins_option()};
  std::ranges::move(run_options(), std::back_inserter(options));
  return options;
}

/// A pipe that has the prompt of --prompt or --message as a line of JSON.
files::FileDescriptor pipe_of_prompt(const Parsed& parsed) {
  boost::json::object line;
  if (parsed.has("message")) {
    line["messages"] = conversation_of(parsed).messages;
  } else {
    line = {{"prompt", parsed.get("prompt").value_or("\n")}, {"echo", true}};
  }
  const std::string text = boost::json::serialize(line) + "\n";
  files::FileDescriptor file(::memfd_create("prompt", MFD_CLOEXEC));
  if (!file.is_open() || ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::lseek(file.get(), 0, SEEK_SET) != 0) {
    throw files::system_error("write", "the prompt", errno);
  }
  return file;
}

/// Continues prompts by a job, which can be split over ranks.
int generate_by_job(std::span<const std::string> words, const Parsed& parsed, std::int64_t count) {
  std::vector<std::string> overrides = parsed.all("set");
  const auto set = [&](const char* setting, const std::string& value) {
    overrides.push_back(fmt::format("{}={}", setting, value));
  };
  set("infer.from", parsed.get("prompts").value_or("-"));
  set("infer.to", parsed.get("to").value_or("-"));
  set("infer.tokens", fmt::format("{}", count));
  constexpr std::pair<const char*, const char*> settings[] = {{"temperature", "infer.temperature"},
                                                              {"top-k", "infer.top_k"},
                                                              {"top-p", "infer.top_p"},
                                                              {"min-p", "infer.min_p"},
                                                              {"seed", "job.seed"},
                                                              {"threads", "job.threads"},
                                                              {"ranks", "job.ranks"},
                                                              {"strategy", "job.strategy"},
                                                              {"transport", "job.transport"}};
  for (const auto& [option, setting] : settings) {
    if (const std::optional<std::string> value = parsed.get(option)) {
      set(setting, *value);
    }
  }
  if (const std::vector<std::filesystem::path> folders = given_plugins(parsed); !folders.empty()) {
    std::string all;
    for (const std::filesystem::path& folder : folders) {
      all += (all.empty() ? "" : ", ") + folder.string();
    }
    set("plugins.path", all);
  }
  if (!parsed.has("prompts")) {
    set("infer.text", "true");
    set("infer.slots", "1");
    if (::dup2(pipe_of_prompt(parsed).get(), STDIN_FILENO) < 0) {
      throw files::system_error("replace", "standard input", errno);
    }
  }
  return run_job("generate", words, parsed,
                 checked_job(parsed, job_of_weights(parsed, "generate", parsed.positional[0], overrides)));
}

int generate(std::span<const std::string> words) {
  const Parsed parsed = parse("generate", words, generate_options(), 1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  const std::int64_t count = parsed.integer("tokens", 500, 0, 1'000'000'000);
  infer::Sampling sampling{.temperature = parsed.real("temperature", 0.8, 0, 1000),
                           .top_k = parsed.integer("top-k", 0, 0, 1'000'000),
                           .top_p = parsed.real("top-p", 1, 0, 1),
                           .min_p = parsed.real("min-p", 0, 0, 1),
                           .seed = static_cast<std::uint64_t>(parsed.integer("seed", 1337, 0, INT64_MAX))};
  require_effect(parsed, sampling);
  for (const char* option : {"prompts", "to", "ranks", "strategy", "transport", "set", "json", "profile", "launch"}) {
    if (parsed.has(option)) {
      return generate_by_job(words, parsed, count);
    }
  }
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
  const infer::Language language(trained.tokenizer, given.is_hub() ? parsed.positional[0] : "");
  std::vector<std::int32_t> tokens;
  if (trained.tokenizer) {
    tokens = parsed.has("message") ? language.encode(conversation_of(parsed)) : language.encode(prompt);
  }
  const std::vector<std::int64_t> ends = language.ends();
  const std::size_t prompted = trained.tokenizer ? tokens.size() : prompt.size();
  const bool has_caches = take_caches(trained, prompted, count);
  if (!has_caches && given.is_hub()) {
    take_needed_context(trained, prompted, count);
  }
  const graph::Graph graph = has_caches ? workload::build_decoding(trained.model, trained.settings, {.slots = 1})
                                        : workload::build_prediction(trained.model, trained.settings);
  sampling.vocabulary = trained.tokenizer ? trained.tokenizer->vocabulary() : 0;
  const device::Device& cpu = device::Device::find("cpu");
  runtime::Executor executor(partition::programs_of(graph, cpu, threads), cpu);
  checkpoint::load_parameters(given.source(), graph, executor);
  if (!trained.tokenizer) {
    const graph::Function& function = graph.functions.back();
    tokens = numbers_of(prompt, function.values[function.outputs.front().value].type.shape.back());
  }
  Printer printer(trained.tokenizer);
  if (!parsed.has("message")) {
    std::ranges::for_each(tokens, [&](std::int32_t token) { printer.print(token); });
  }
  bool has_ended = false;
  const auto take = [&](std::int32_t token) {
    has_ended = std::ranges::find(ends, token) != ends.end();
    if (!has_ended) {
      printer.print(token);
    }
  };
  if (!has_caches) {
    infer::sample(
        executor, tokens, count, sampling, [&] { return !has_ended; }, take);
  } else if (count > 0) {
    infer::Session session(executor, trained.settings.caches, 1);
    session.add({.prompt = tokens, .tokens = count, .sampling = sampling, .ends = ends});
    while (session.is_busy()) {
      session.step([&](const infer::Drawn& drawn) { take(drawn.token); });
    }
  }
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
