#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
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
#include "core/partition/partition.h"
#include "core/serve/server.h"
#include "core/template/chat.h"
#include "core/workload/program.h"

namespace shardrun::cli {
namespace {

constexpr std::int64_t usual_seed = 1337;

/// If one of these options is given, a job continues the prompt. Otherwise this process does.
constexpr const char* options_of_jobs[] = {"prompts", "to",   "ranks",   "strategy", "transport",
                                           "set",     "json", "profile", "launch",   "context"};

/// Throws Error{usage} for options that have no effect because, with temperature 0, no random numbers are drawn.
void require_effect(const Parsed& parsed, const infer::Sampling& settings) {
  for (const char* option : {"top-k", "top-p", "min-p", "seed"}) {
    if (settings.temperature == 0 && parsed.has(option)) {
      throw Error(ErrorCode::usage, fmt::format("--{} has no effect with --temperature 0, which always takes the "
                                                "likeliest token: leave out one of them",
                                                option));
    }
  }
}

/// Prints tokens as text, in whole characters. Without a tokenizer it prints the tokens' numbers.
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

/// Reduces the model's context to the tokens that are needed, rounded up to a multiple of 16. Each position takes time,
/// and models of other libraries have long contexts. `prompted`: the number of tokens of the prompt.
void take_needed_context(checkpoint::TrainedModel& trained, std::size_t prompted, std::int64_t tokens) {
  constexpr std::int64_t step = 16;
  OptionValues& options = trained.settings.options;
  const std::int64_t needed = (static_cast<std::int64_t>(prompted) + tokens + step - 1) / step * step;
  options.set("context", std::min(options.integer("context"), std::max(needed, step)));
}

/// Gives the model caches for a prompt and `tokens` more. Returns false if it has no caches or too short a context.
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

/// Throws Error{usage} if --message or --chat are given without effect.
void require_chat(const Parsed& parsed, bool is_hub, bool has_tokenizer) {
  for (const char* const option : {"message", "prompt", "prompts", "to", "json", "profile", "launch"}) {
    if (parsed.has("chat") && parsed.has(option)) {
      throw Error(ErrorCode::usage, fmt::format("--{} has no effect with --chat: leave out one of them", option));
    }
  }
  if (parsed.has("message") && parsed.get("message")->empty()) {
    throw Error(ErrorCode::usage, "--message: expected what the user says, found an empty text: give a text");
  }
  if (parsed.has("message") && parsed.has("prompt")) {
    throw Error(ErrorCode::usage, "--message and --prompt both say what the model reads: leave out one of them");
  }
  const bool is_chat = parsed.has("chat");
  if ((is_chat || parsed.has("message")) && !(is_hub && has_tokenizer)) {
    throw Error(
        ErrorCode::usage,
        fmt::format("{} needs a folder of Hugging Face's libraries, or a GGUF file, with a tokenizer and a chat "
                    "template: give other models their text with --prompt",
                    is_chat ? "--chat" : "--message"));
  }
}

std::vector<OptionSyntax> generate_options() {
  std::vector<OptionSyntax> options = {
      {.name = "prompt",
       .value = "TEXT",
       .help =
           "text to continue (default: with what a text begins); of a model without a tokenizer, numbers of tokens"},
      {.name = "message",
       .value = "TEXT",
       .help = "what the user says, in the words of the model's chat template; the answer is printed"},
      {.name = "chat", .help = "talk: each line of standard input is answered; /reset begins anew, /exit ends"},
      {.name = "system",
       .value = "TEXT",
       .help = "with --message or --chat, what the model is told before",
       .needs = {"message", "chat"}},
      {.name = "prompts",
       .value = "FILE",
       .help = "prompts as JSON objects, one in a line; - is standard input. The answers are such objects, in order"},
      {.name = "to", .value = "FILE", .help = "the file of the answers (default: standard output)"},
      needing("to", replace_option()),
      {.name = "tokens",
       .value = "N",
       .help = "number of tokens to sample (default 500); a model of a folder may end before"},
      {.name = "context",
       .value = "N",
       .help = "the most tokens of a prompt and its answer (default: the model's, of folders and GGUF files at most "
               "1024)"},
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
      {.name = "seed", .value = "S", .help = "seed of the random draws (default 1337)"}};
  std::ranges::move(generating_options(), std::back_inserter(options));
  std::ranges::move(run_options(), std::back_inserter(options));
  std::ranges::find(options, "json", &OptionSyntax::name)->help =
      "print answers with their times as JSON; with --to, the summary of the job";
  return options;
}

/// Makes a prompt's tokens the standard input, as a line of a file of prompts.
void take_as_input(const std::vector<std::int32_t>& tokens, bool echo) {
  const boost::json::object line = {{"prompt", boost::json::array(tokens.begin(), tokens.end())}, {"echo", echo}};
  const std::string text = boost::json::serialize(line) + "\n";
  const files::FileDescriptor file(::memfd_create("prompt", MFD_CLOEXEC));
  if (!file.is_open() || ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::lseek(file.get(), 0, SEEK_SET) != 0 || ::dup2(file.get(), STDIN_FILENO) < 0) {
    throw files::system_error("write", "the prompt", errno);
  }
}

/// Continues prompts by a job, which can be split over ranks. `tokens`: the prompt, if --prompts is not given.
int generate_by_job(std::span<const std::string> words, const Parsed& parsed, std::int64_t count,
                    const std::vector<std::int32_t>& tokens) {
  std::vector<std::pair<std::string, std::string>> defaults = {{"infer.from", "-"},
                                                               {"infer.to", "-"},
                                                               {"infer.tokens", fmt::format("{}", count)},
                                                               {"job.threads", "1"},
                                                               {"job.seed", fmt::format("{}", usual_seed)}};
  const bool is_timed = parsed.has("json") && !parsed.has("to");
  if (is_timed) {
    defaults.emplace_back("infer.timings", "true");
  }
  if (!parsed.has("prompts")) {
    defaults.insert(defaults.end(), {{"infer.text", is_timed ? "false" : "true"}, {"infer.slots", "1"}});
    take_as_input(tokens, !parsed.has("message") && !is_timed);
  }
  const job::Job job = checked_job(parsed, generating_job(parsed, "generate", defaults));
  const std::int64_t context = job.infer.context > 0 ? job.infer.context : job.model.options.integer("context");
  const std::string lacks = infer::lack_of_room({.prompt = tokens, .tokens = count}, context);
  if (!parsed.has("prompts") && !lacks.empty()) {
    throw Error(ErrorCode::usage, fmt::format("--{}: {}", parsed.has("message") ? "message" : "prompt", lacks));
  }
  return run_job("generate", words, parsed, job);
}

/// Throws Error{usage} for options that contradict each other if a job continues prompts, or that a job cannot follow.
void require_job(const Parsed& parsed, const checkpoint::TrainedModel& trained, std::int64_t count) {
  for (const char* option : {"prompt", "message", "system"}) {
    if (parsed.has("prompts") && parsed.has(option)) {
      throw Error(ErrorCode::usage,
                  fmt::format("--prompts and --{} both say what the model reads: leave out one of them", option));
    }
  }
  if (count == 0) {
    throw Error(ErrorCode::usage, "--tokens 0: expected at least one token, if the prompts are continued by a job");
  }
  require_generating(trained, parsed.positional[0]);
}

job::Weights weights_setting(const Parsed& parsed) {
  const std::string text = parsed.get("weights").value_or(job::automatic);
  const std::vector<std::string>& choices = job::weights_choices;
  const auto found = std::ranges::find(choices, text);
  if (found == choices.end()) {
    throw Error(ErrorCode::usage,
                fmt::format("--weights: expected one of {}, found '{}'", fmt::join(choices, ", "), text));
  }
  return static_cast<job::Weights>(found - choices.begin());
}

/// The type that --activations names, if this process generates. Throws Error{usage} for what a job would refuse.
graph::DType activations_setting(const Parsed& parsed, graph::DType matrices) {
  const std::string text = parsed.get("activations").value_or("float32");
  if (text != "float32" && text != "bfloat16") {
    throw Error(ErrorCode::usage, fmt::format("--activations: expected one of float32, bfloat16, found '{}'", text));
  }
  try {
    return checkpoint::type_of_activations(text == "bfloat16" ? job::RealType::bfloat16 : job::RealType::float32,
                                           matrices);
  } catch (const Error& error) {
    throw Error(ErrorCode::usage, fmt::format("--activations: {}", error.message()));
  }
}

/// Throws Error{usage} for a token that the model does not have.
void require_tokens(const std::vector<std::int32_t>& tokens, std::int64_t vocab) {
  const auto other = std::ranges::find_if(tokens, [&](std::int32_t token) { return token >= vocab; });
  if (other != tokens.end()) {
    throw Error(ErrorCode::usage,
                fmt::format("--prompt: it has the token {}, and the model has tokens 0 to {}", *other, vocab - 1));
  }
}

int generate(std::span<const std::string> words) {
  Parsed parsed = parse("generate", words, generate_options(), 1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  if (const std::filesystem::path given = parsed.positional[0]; given.extension() == ".ini") {
    parsed.positional[0] = run_of_job("generate", given).string();
  }
  const std::int64_t count = parsed.integer("tokens", 500, 0, 1'000'000'000);
  infer::Sampling sampling{.temperature = parsed.real("temperature", 0.8, 0, 1000),
                           .top_k = parsed.integer("top-k", 0, 0, 1'000'000),
                           .top_p = parsed.real("top-p", 1, 0, 1),
                           .min_p = parsed.real("min-p", 0, 0, 1),
                           .seed = static_cast<std::uint64_t>(parsed.integer("seed", usual_seed, 0, INT64_MAX))};
  require_effect(parsed, sampling);
  const int threads = static_cast<int>(parsed.integer("threads", 1, 1, 1024));
  std::vector<std::filesystem::path> folders = given_plugins(parsed);
  const checkpoint::GivenWeights given(parsed.positional[0], compile::models_in(compile::directories_of(folders)));
  given.check();
  const bool is_job = std::ranges::any_of(options_of_jobs, [&](const char* option) { return parsed.has(option); });
  if (given.chosen() && !is_job) {
    write_to_standard_error(
        fmt::format("samples from the checkpoint of step {}: '{}'\n", given.step(), given.chosen()->native()));
  }
  if (const std::optional<job::RawJob> job = given.job()) {  // a weights file has none
    std::ranges::copy(job::plugin_path(*job), std::back_inserter(folders));
  }
  checkpoint::TrainedModel trained =
      checkpoint::read_model(given.source(), compile::models_in(compile::directories_of(folders)));
  require_chat(parsed, given.is_hub(), trained.tokenizer && trained.tokenizer->file() != nullptr);
  if (is_job || parsed.has("chat")) {
    require_job(parsed, trained, count);
  }
  if (parsed.has("chat")) {
    const EventJob job(parsed, "generate",
                       {{"infer.tokens", fmt::format("{}", count)},
                        {"infer.slots", "1"},
                        {"job.seed", fmt::format("{}", usual_seed)}});
    return serve::chat(job.words(), job.language(), parsed.get("system").value_or(""));
  }
  const infer::Language language(trained.tokenizer, given.is_hub() ? parsed.positional[0] : "");
  const std::vector<std::int32_t> tokens = parsed.has("message") ? language.encode(conversation_of(parsed))
                                                                 : language.encode(parsed.get("prompt").value_or(""));
  if (is_job) {
    return generate_by_job(words, parsed, count, tokens);
  }
  const std::vector<std::int64_t> ends = language.ends();
  const bool has_caches = take_caches(trained, tokens.size(), count);
  if (!has_caches && given.is_hub()) {
    take_needed_context(trained, tokens.size(), count);
  }
  const graph::DType matrices = checkpoint::type_of_matrices(weights_setting(parsed), &given);
  const graph::DType activations = activations_setting(parsed, matrices);
  const graph::Graph graph =
      has_caches ? workload::build_decoding(trained.model, trained.settings,
                                            {.slots = 1, .weights = matrices, .activations = activations})
                 : workload::build_prediction(trained.model, trained.settings, matrices, activations);
  const graph::Function& function = graph.functions.back();
  require_tokens(tokens, function.values[function.outputs.front().value].type.shape.back());
  sampling.vocabulary = trained.tokenizer ? trained.tokenizer->vocabulary() : 0;
  const device::Device& cpu = device::Device::find("cpu");
  runtime::Executor executor(partition::programs_of(graph, cpu, threads), cpu);
  checkpoint::load_parameters(given.source(), graph, executor);
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
    infer::Session session(executor, trained.settings.caches, {}, trained.settings.options.integer("context"));
    session.add({.prompt = tokens, .tokens = count, .sampling = sampling, .ends = ends});
    while (session.requests() > 0) {
      session.step({.drawn = [&](const infer::Drawn& drawn) { take(drawn.token); }});
    }
  }
  fmt::print("\n");  // bytes that wait for the rest of their character are left out
  return 0;
}

const RegisterCommand generate_command({.name = "generate",
                                        .arguments = "RUN|FOLDER|FILE.gguf|JOB.ini",
                                        .help = "sample from a run's folder, a weights file, a checkpoint, a folder of "
                                                "Hugging Face's libraries, or a GGUF file",
                                        .run = generate});

}  // namespace
}  // namespace shardrun::cli
