#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/printable.h"
#include "core/checkpoint/given_weights.h"
#include "core/checkpoint/weights.h"
#include "core/cli/options.h"
#include "core/cli/process.h"
#include "core/compile/model.h"
#include "core/compile/plugins.h"
#include "core/data/npy.h"
#include "core/device/host_tensor.h"
#include "core/files/folder.h"
#include "core/files/gguf.h"
#include "core/files/text_file.h"
#include "core/partition/partition.h"
#include "core/workload/program.h"

namespace shardrun::cli {
namespace {

/// What was found: each line that says no makes the whole say no.
class Findings {
 public:
  void tell(bool holds, const std::string& line) {
    holds_ = holds_ && holds;
    fmt::print("{} {}\n", holds ? "yes:" : "NO: ", line);
    std::fflush(stdout);
  }
  [[nodiscard]] bool holds() const noexcept { return holds_; }

 private:
  bool holds_ = true;
};

data::NpyArray integers_in(const std::string& option, const std::string& path) {
  data::NpyArray array{files::SteadyFile(path)};
  if (!data::is_integer(array.type())) {
    throw Error(ErrorCode::data, fmt::format("--{}: {} holds {}, expected whole numbers", option,
                                             files::human_path(path), data::to_string(array.type())));
  }
  return array;
}

void print_folder(const std::filesystem::path& folder, const workload::Models& models) {
  fmt::print("config.json:\n");
  for (const checkpoint::UnderstoodKey& key : checkpoint::understood_keys(folder, models)) {
    fmt::print("  {} = {}: {}\n", printable(key.key), printable(key.value), printable(key.meaning));
  }
  const checkpoint::TensorFiles files(folder);
  std::int64_t elements = 0;
  fmt::print("tensors:\n");
  for (const checkpoint::TensorInfo& tensor : files.source().tensors) {
    std::int64_t size = 1;
    std::ranges::for_each(tensor.shape, [&](std::int64_t extent) { size *= extent; });
    elements += size;
    fmt::print("  {} [{}] {}\n", printable(tensor.name), fmt::join(tensor.shape, ", "), to_string(tensor.dtype));
  }
  fmt::print("{} with {} elements\n", counted(static_cast<std::int64_t>(files.source().tensors.size()), "tensor"),
             elements);
}

/// Compares the tokens of a text with those that another program made of it.
void check_tokens(const Parsed& parsed, const checkpoint::TrainedModel& trained, Findings& findings) {
  if (!trained.tokenizer || trained.tokenizer->file() == nullptr) {
    throw Error(ErrorCode::data, "--text: the folder has no tokenizer that can be used");
  }
  const data::NpyArray array = integers_in("against", *parsed.get("against"));
  std::vector<std::int64_t> theirs(static_cast<std::size_t>(array.elements()));
  array.read(0, std::span(theirs));
  constexpr std::size_t most = std::size_t{1} << 30U;
  std::vector<std::int32_t> ours = trained.tokenizer->encode(files::read_text_file(*parsed.get("text"), most));
  const std::vector<std::int32_t>& before = trained.tokenizer->file()->before();
  const std::vector<std::int32_t>& behind = trained.tokenizer->file()->behind();
  const bool is_whole = theirs.size() == ours.size() + before.size() + behind.size();
  if (is_whole) {
    ours.insert(ours.begin(), before.begin(), before.end());
    ours.insert(ours.end(), behind.begin(), behind.end());
  }
  const auto [our, their] = std::ranges::mismatch(ours, theirs);
  if (our == ours.end() && their == theirs.end()) {
    return findings.tell(
        true, fmt::format("the text has the same {} tokens{}", ours.size(),
                          is_whole && !(before.empty() && behind.empty()) ? ", with those of the post-processor" : ""));
  }
  const auto shown = [](auto at, auto end) { return at == end ? std::string("the end") : std::to_string(*at); };
  findings.tell(
      false,
      fmt::format("the text has {} tokens here and {} in --against; they part at token {}: {} here, {} "
                  "there",
                  ours.size(), theirs.size(), our - ours.begin(), shown(our, ours.end()), shown(their, theirs.end())));
}

/// Logits of whole sequences on one device.
class Applied {
 public:
  Applied(const graph::Graph& graph, const checkpoint::TensorSource& weights, const char* device, int threads)
      : device_(device::Device::find(device)), executor_(partition::programs_of(graph, device_, threads), device_) {
    checkpoint::load_parameters(weights, graph, executor_);
  }

  template <typename Number>
  [[nodiscard]] std::vector<double> logits(const std::vector<std::int32_t>& tokens) {
    const std::size_t program = executor_.find(workload::forward_function, 1);
    device::HostTensor inputs(executor_.host(device::Access::write), executor_.input(program, "inputs"),
                              device::Access::write);
    std::ranges::copy(tokens, device::elements_of<std::int32_t>(inputs.view()).begin());
    inputs.store();
    executor_.run(program, device::Scalars{});
    const device::HostTensor found(executor_.host(device::Access::read),
                                   executor_.output(program, workload::forward_output), device::Access::read);
    const std::span<const Number> values = device::elements_of<Number>(found.view());
    return {values.begin(), values.end()};
  }

 private:
  const device::Device& device_;
  runtime::Executor executor_;
};

/// How far logits are from others: the largest difference over the largest of the others.
struct Distance {
  double difference = 0;
  double largest = 0;
  std::size_t rows = 0;
  std::size_t same_choice = 0;  ///< rows with the same likeliest token

  void add(std::span<const double> ours, std::span<const double> theirs, std::size_t vocabulary) {
    for (std::size_t row = 0; row < ours.size(); row += vocabulary) {
      const auto a = ours.subspan(row, vocabulary);
      const auto b = theirs.subspan(row, vocabulary);
      ++rows;
      same_choice += std::ranges::max_element(a) - a.begin() == std::ranges::max_element(b) - b.begin() ? 1 : 0;
      for (std::size_t i = 0; i < vocabulary; ++i) {
        const double apart = std::abs(a[i] - b[i]);
        difference = std::isnan(apart) ? INFINITY : std::max(difference, apart);
        largest = std::max(largest, std::abs(b[i]));
      }
    }
  }
  [[nodiscard]] double share() const { return largest > 0 ? difference / largest : difference > 0 ? INFINITY : 0; }
  [[nodiscard]] std::string text() const {
    return fmt::format("differ by {:.2g} of the largest, which is {:.4g}; {} of {} likeliest tokens are the same",
                       share(), largest, same_choice, rows);
  }
};

void check_logits(const Parsed& parsed, checkpoint::TrainedModel& trained, const checkpoint::TensorSource& weights,
                  Findings& findings) {
  const data::NpyArray tokens = integers_in("tokens", *parsed.get("tokens"));
  if (tokens.shape().size() != 2) {
    throw Error(ErrorCode::data,
                fmt::format("--tokens: expected [sequences, tokens], found {} dimensions", tokens.shape().size()));
  }
  const std::int64_t context = tokens.shape()[1];
  const std::int64_t vocabulary = trained.settings.options.integer("vocab");
  std::optional<data::NpyArray> others;
  if (const std::optional<std::string> path = parsed.get("logits")) {
    others.emplace(files::SteadyFile(*path));
    if (others->shape() != std::vector<std::int64_t>{tokens.shape()[0], context, vocabulary}) {
      throw Error(ErrorCode::data, fmt::format("--logits: expected [{}, {}, {}], found [{}]", tokens.shape()[0],
                                               context, vocabulary, fmt::join(others->shape(), ", ")));
    }
  }
  trained.settings.options.set("context", context);
  trained.settings.data.vocab = vocabulary;
  const graph::Graph graph = workload::build_inference(trained.model, trained.settings, {1});
  const int threads = static_cast<int>(parsed.integer("threads", 1, 1, 1024));
  Applied fast(graph, weights, "cpu", threads);
  Applied exact(graph, weights, "reference", threads);
  Distance from_exact;
  Distance from_others;
  std::vector<std::int64_t> row(static_cast<std::size_t>(context));
  for (std::int64_t i = 0; i < tokens.shape()[0]; ++i) {
    tokens.read(i * context, std::span(row));
    for (const std::int64_t token : row) {
      if (token < 0 || token >= vocabulary) {
        throw Error(ErrorCode::data,
                    fmt::format("--tokens: sequence {} has the token {}; the model has {}", i, token, vocabulary));
      }
    }
    const std::vector<std::int32_t> given(row.begin(), row.end());
    const std::vector<double> ours = fast.logits<float>(given);
    from_exact.add(ours, exact.logits<double>(given), static_cast<std::size_t>(vocabulary));
    if (others) {
      std::vector<float> theirs(ours.size());
      others->read(i * context * vocabulary, std::span(theirs));
      from_others.add(ours, std::vector<double>(theirs.begin(), theirs.end()), static_cast<std::size_t>(vocabulary));
    }
  }
  const double limit = parsed.real("limit", 1e-4, 0, 1);
  findings.tell(from_exact.share() <= limit, "logits and those of the float64 reference " + from_exact.text());
  if (others) {
    findings.tell(from_others.share() <= limit, "logits and those of --logits " + from_others.text());
  }
}

int check_folder(std::span<const std::string> words) {
  const Parsed parsed = parse(
      "checkpoint check", words,
      {{.name = "text", .value = "FILE", .help = "a text whose tokens are compared with --against"},
       {.name = "against", .value = "IDS.npy", .help = "the tokens that another program made of --text"},
       {.name = "tokens",
        .value = "X.npy",
        .help = "sequences of tokens, [sequences, tokens]: their logits are compared with the float64 reference"},
       {.name = "logits",
        .value = "Y.npy",
        .help = "logits of another program for --tokens, [sequences, tokens, vocabulary]"},
       {.name = "limit", .value = "X", .help = "how far logits may differ, as a share of the largest (default 1e-4)"},
       {.name = "threads", .value = "N", .help = "threads to compute with (default 1)"}},
      1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  for (const auto& [option, other] :
       {std::pair("text", "against"), {"against", "text"}, {"logits", "tokens"}, {"limit", "tokens"}}) {
    if (parsed.has(option) && !parsed.has(other)) {
      throw Error(ErrorCode::usage, fmt::format("--{} has no effect without --{}: give both", option, other));
    }
  }
  const std::filesystem::path folder = parsed.positional[0];
  if (files::is_gguf(folder)) {
    throw Error(
        ErrorCode::usage,
        fmt::format("checkpoint check: {} is a GGUF file, and only folders are checked; 'shardrun checkpoint export "
                    "{} --hub -o FOLDER' makes one of it",
                    files::human_path(folder), files::human_path(folder)));
  }
  if (!checkpoint::is_hub_model(folder)) {
    throw Error(ErrorCode::usage,
                fmt::format("checkpoint check: {} is no folder with a config.json; 'shardrun checkpoint "
                            "verify' reads checkpoints of runs",
                            files::human_path(folder)));
  }
  catch_stop_signals();
  const workload::Models models = compile::models_in(compile::directories_of({}));
  const checkpoint::HubFolder hub(folder, models);  // which refuses what is missing or unknown
  print_folder(folder, models);
  checkpoint::TrainedModel trained = checkpoint::read_model(hub.source(), models);
  std::int64_t parameters = 0;
  for (const checkpoint::TensorInfo& tensor : hub.source().tensors) {
    std::int64_t size = 1;
    std::ranges::for_each(tensor.shape, [&](std::int64_t extent) { size *= extent; });
    parameters += size;
  }
  Findings findings;
  findings.tell(
      true, fmt::format("the tensors are those of the model {}, with {} parameters", trained.model.name, parameters));
  if (!hub.note().empty()) {
    fmt::print("note: {}\n", hub.note());
  }
  if (parsed.has("text")) {
    check_tokens(parsed, trained, findings);
  }
  if (parsed.has("tokens")) {
    check_logits(parsed, trained, hub.source(), findings);
  }
  return findings.holds() ? 0 : 1;
}

const RegisterCommand checkpoint_check(
    {.name = "checkpoint check",
     .arguments = "FOLDER",
     .help = "how a folder of Hugging Face's libraries is read, and whether it computes the same",
     .run = check_folder});

}  // namespace
}  // namespace shardrun::cli
