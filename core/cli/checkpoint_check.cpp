#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/suggest.h"
#include "core/base/text.h"
#include "core/checkpoint/given_weights.h"
#include "core/checkpoint/weights.h"
#include "core/cli/options.h"
#include "core/compile/model.h"
#include "core/compile/plugins.h"
#include "core/data/npy.h"
#include "core/device/host_tensor.h"
#include "core/files/folder.h"
#include "core/files/mapped_file.h"
#include "core/partition/partition.h"
#include "core/verify/report.h"
#include "core/verify/rounding.h"
#include "core/workload/program.h"

namespace shardrun::cli {
namespace {

/// Prints the findings. If one of them is negative, so is the whole check.
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
  if (!data::can_be_token(array.type())) {
    throw Error(ErrorCode::data, fmt::format("--{}: {} holds {}, expected whole numbers", option,
                                             files::human_path(path), data::to_string(array.type())));
  }
  return array;
}

std::int64_t elements_of(const std::vector<checkpoint::TensorInfo>& tensors) {
  std::int64_t elements = 0;
  for (const checkpoint::TensorInfo& tensor : tensors) {
    elements += static_cast<std::int64_t>(*tensor_bytes(tensor) / element_bytes(tensor.dtype));
  }
  return elements;
}

void print_folder(const checkpoint::HubFolder& hub) {
  fmt::print("config.json:\n");
  for (const checkpoint::UnderstoodKey& key : hub.understood_keys()) {
    fmt::print("  {} = {}: {}\n", printable(key.key), printable(key.value), printable(key.meaning));
  }
  const std::vector<checkpoint::TensorInfo>& tensors = hub.tensors().tensors;
  fmt::print("tensors:\n");
  for (const checkpoint::TensorInfo& tensor : tensors) {
    fmt::print("  {} [{}] {}\n", printable(tensor.name), fmt::join(tensor.shape, ", "), to_string(tensor.dtype));
  }
  fmt::print("{} with {} elements\n", counted(static_cast<std::int64_t>(tensors.size()), "tensor"),
             elements_of(tensors));
}

/// Compares the tokens of a text with those that another program made from the text.
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

/// A model on one device, applied to a whole sequence at a time.
class Applied {
 public:
  Applied(const graph::Graph& graph, const checkpoint::TensorSource& weights, const char* device, int threads)
      : device_(device::Device::find(device)), executor_(partition::programs_of(graph, device_, threads), device_) {
    checkpoint::load_parameters(weights, graph, executor_);
  }

  /// `round`: rounds the results of every op; null: nothing is rounded.
  void run(const std::vector<std::int32_t>& tokens, const device::RoundResults* round = nullptr) {
    device::HostTensor inputs(executor_.host(device::Access::write), executor_.input(program_, "inputs"),
                              device::Access::write);
    std::ranges::copy(tokens, device::elements_of<std::int32_t>(inputs.view()).begin());
    inputs.store();
    executor_.run(program_, device::Scalars{.round = round});
  }

  /// An output of the last run.
  template <typename Number>
  [[nodiscard]] std::vector<double> output(std::string_view name) {
    const device::HostTensor found(executor_.host(device::Access::read), executor_.output(program_, name),
                                   device::Access::read);
    const std::span<const Number> values = device::elements_of<Number>(found.view());
    return {values.begin(), values.end()};
  }

 private:
  const device::Device& device_;
  runtime::Executor executor_;
  std::size_t program_ = executor_.find(workload::forward_function, 1);
};

/// How far logits are from another program's: the largest difference, relative to that program's largest logit.
struct Distance {
  double difference = 0;
  double largest = 0;
  std::size_t rows = 0;
  std::size_t same_choice = 0;  ///< positions at which both have the same likeliest token

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

/// A tensor of --outputs: the values that another program has after the embedding or after a layer. Each token is
/// judged on its own, because a few tokens can have elements thousands of times as large as others.
struct Outer {
  std::size_t tensor;    ///< index in the file
  std::string name;      ///< name in the file, and of the output that is compared with it
  graph::ValueId value;  ///< the value in the function `forward`
  double stored = 0;     ///< the rounding error of the stored type, relative to an element
  // The following numbers are those of the token whose difference is largest, relative to the allowed difference.
  double excess = 0;    ///< the largest difference, relative to the allowed difference
  double share = 0;     ///< the largest difference, relative to the token's largest element
  double rounding = 0;  ///< the largest rounding error, relative to the token's largest element
  std::int64_t at = 0;  ///< index of the element that differs most
  double ours = 0;      ///< this program's value of that element
  double theirs = 0;

  /// Judges some tokens. `first`: the index of the first element. `width`: elements per token. `limit`: the allowed
  /// difference, relative to the token's largest element. `exact`: the reference's values. `rounded`: the same,
  /// computed with the results of all ops rounded.
  void add(std::int64_t first, std::size_t width, double limit, std::span<const double> here,
           std::span<const float> there, std::span<const double> exact, std::span<const double> rounded) {
    for (std::size_t row = 0; row < here.size(); row += width) {
      std::size_t worst = row;
      double most = 0;
      double by_rounding = 0;
      double largest = 0;
      for (std::size_t i = row; i < row + width; ++i) {
        const double their = static_cast<double>(there[i]);
        const double apart = std::abs(here[i] - their) - stored * std::abs(their);
        if (apart > most || (std::isnan(apart) && most < INFINITY)) {
          worst = i;
          most = std::isnan(apart) ? INFINITY : apart;
        }
        by_rounding = std::max(by_rounding, std::abs(rounded[i] - exact[i]));
        largest = std::max(largest, std::abs(their));
      }
      const double allowed = std::max(limit * largest, verify::limit * by_rounding);
      const double beyond = most == 0 ? 0 : allowed > 0 && most < INFINITY ? most / allowed : INFINITY;
      if (beyond > excess) {
        excess = beyond;
        share = most < INFINITY ? most / largest : INFINITY;
        rounding = by_rounding / largest;
        at = first + static_cast<std::int64_t>(worst);
        ours = here[worst];
        theirs = static_cast<double>(there[worst]);
      }
    }
  }
};

/// The values with which tensors of --outputs can be compared, by the tensor's name. Each cut point has its own name.
/// `embedding` is the last cut point before the first layer, and `layer_N` is the last one of layer N.
std::map<std::string, graph::ValueId> names_of_outputs(const graph::Graph& graph, const graph::Function& forward) {
  std::map<std::string, graph::ValueId> names;
  for (const graph::ValueId id : forward.values.ids()) {
    const std::string& point = forward.values[id].cut_point;
    const auto found = std::ranges::find(graph.cut_points, point, &graph::CutPoint::name);
    if (point.empty() || found == graph.cut_points.end()) {
      continue;
    }
    names.insert_or_assign(point, id);
    if (found->layer < graph.layers) {
      names.insert_or_assign(found->layer < 0 ? "embedding" : fmt::format("layer_{}", found->layer), id);
    }
  }
  return names;
}

/// Each tensor in the file has the name of a value of the function `forward`. Makes these values outputs of `forward`,
/// and returns them in the order of the graph. Throws Error{data} for a tensor with another name or another shape.
std::vector<Outer> add_outputs(const checkpoint::TensorSource& theirs, const std::vector<std::int64_t>& tokens,
                               graph::Graph& graph) {
  graph::Function& forward = graph.functions.front();
  const std::map<std::string, graph::ValueId> names = names_of_outputs(graph, forward);
  std::vector<Outer> outputs;
  for (std::size_t i = 0; i < theirs.tensors.size(); ++i) {
    const checkpoint::TensorInfo& info = theirs.tensors[i];
    const auto found = names.find(info.name);
    if (found == names.end()) {
      std::vector<std::string> known;
      std::ranges::transform(names, std::back_inserter(known), [](const auto& name) { return name.first; });
      throw Error(
          ErrorCode::data,
          fmt::format("--outputs: the model has no output '{}'{}; its {} are called embedding, layer_0, layer_1, "
                      "… and as its cut points",
                      printable(info.name), did_you_mean(info.name, known), known.size()));
    }
    std::vector<std::int64_t> expected = forward.values[found->second].type.shape;
    expected.front() = tokens.front();
    if (info.shape != expected || !checkpoint::is_real(info.dtype)) {
      throw Error(ErrorCode::data,
                  fmt::format("--outputs: {} is {} [{}], expected real numbers [{}]", printable(info.name),
                              to_string(info.dtype), fmt::join(info.shape, ", "), fmt::join(expected, ", ")));
    }
    const double stored = info.dtype == checkpoint::DType::bf16  ? 0x1p-8
                          : info.dtype == checkpoint::DType::f16 ? 0x1p-11
                                                                 : 0;
    outputs.push_back({.tensor = i, .name = info.name, .value = found->second, .stored = stored});
    forward.outputs.push_back({.name = info.name, .value = found->second});
  }
  if (outputs.empty()) {
    throw Error(ErrorCode::data, "--outputs: the file has no tensor");
  }
  std::ranges::stable_sort(outputs, {}, &Outer::value);
  return outputs;
}

/// Prints how much each output differs, and which is the first that differs by more than is allowed.
void tell_outputs(const std::vector<Outer>& outputs, const checkpoint::TensorSource& theirs, Findings& findings) {
  fmt::print("outputs, the token that differs most from --outputs, by its largest element:\n");
  for (const Outer& output : outputs) {
    fmt::print("  {} {:.2g} (rounding {:.2g})\n", output.name, output.share, output.rounding);
  }
  const auto first = std::ranges::find_if(outputs, [](const Outer& output) { return output.excess > 1; });
  if (first == outputs.end()) {
    return findings.tell(true, "outputs and those of --outputs are the same within --limit or rounding");
  }
  findings.tell(false, fmt::format("outputs and those of --outputs first part at {}, by {:.2g} of the largest, at {}: "
                                   "{:g} here, {:g} there",
                                   first->name, first->share, place_of(theirs.tensors[first->tensor], first->at),
                                   first->ours, first->theirs));
}

/// Compares the logits of all tokens, and the outputs of layers, with the float64 reference and with another program's.
void check_numbers(const Parsed& parsed, checkpoint::TrainedModel& trained, const checkpoint::HubFolder& hub,
                   Findings& findings) {
  const data::NpyArray tokens = integers_in("tokens", *parsed.get("tokens"));
  const std::int64_t most = hub.known_context();
  if (tokens.shape().size() != 2 || tokens.elements() == 0 || tokens.shape()[1] > most) {
    throw Error(ErrorCode::data, fmt::format("--tokens: expected [sequences, tokens], at least one sequence of 1 to {} "
                                             "tokens, found [{}]",
                                             most, fmt::join(tokens.shape(), ", ")));
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
  graph::Graph graph = workload::build_inference(trained.model, trained.settings, {1});
  const int threads = static_cast<int>(parsed.integer("threads", 1, 1, 1024));
  std::optional<checkpoint::TensorFiles> file;
  std::vector<Outer> outputs;
  if (const std::optional<std::string> path = parsed.get("outputs")) {
    file.emplace(*path);
    outputs = add_outputs(file->source(), tokens.shape(), graph);
  }
  const double limit = parsed.real("limit", 1e-4, 0, 1);
  Applied fast(graph, hub.source(), "cpu", threads);
  Applied exact(graph, hub.source(), "reference", threads);
  std::uint32_t stream = 0;
  const device::RoundResults round = [&](const device::KernelCall& call) {
    for (const device::TensorView& result : call.outputs) {
      if (graph::is_real(result.dtype)) {
        verify::round_result(result.rounded, device::elements_of<double>(result), ++stream, call.threads);
      }
    }
  };
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
    fast.run(given);
    exact.run(given);
    const std::vector<double> ours = fast.output<float>(workload::forward_output);
    from_exact.add(ours, exact.output<double>(workload::forward_output), static_cast<std::size_t>(vocabulary));
    std::vector<float> theirs(ours.size());
    if (others) {
      others->read(i * context * vocabulary, std::span(theirs));
      from_others.add(ours, std::vector<double>(theirs.begin(), theirs.end()), static_cast<std::size_t>(vocabulary));
    }
    std::vector<std::vector<double>> of_exact;
    for (const Outer& output : outputs) {
      of_exact.push_back(exact.output<double>(output.name));
    }
    if (!outputs.empty()) {
      exact.run(given, &round);
    }
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      Outer& output = outputs[o];
      const std::vector<double> found = fast.output<float>(output.name);
      const std::int64_t first = i * static_cast<std::int64_t>(found.size());
      theirs.resize(found.size());
      checkpoint::read_any_as_float(file->source(), output.tensor, first, theirs);
      output.add(first, static_cast<std::size_t>(file->source().tensors[output.tensor].shape.back()), limit, found,
                 theirs, of_exact[o], exact.output<double>(output.name));
    }
  }
  findings.tell(from_exact.share() <= limit, "logits and those of the float64 reference " + from_exact.text());
  if (file) {
    tell_outputs(outputs, file->source(), findings);
  }
  if (others) {
    findings.tell(from_others.share() <= limit, "logits and those of --logits " + from_others.text());
  }
}

int check_folder(std::span<const std::string> words) {
  const Parsed parsed = parse(
      "checkpoint check", words,
      {{.name = "text",
        .value = "FILE",
        .help = "a text whose tokens are compared with --against",
        .needs = {"against"}},
       {.name = "against",
        .value = "IDS.npy",
        .help = "the tokens that another program made of --text",
        .needs = {"text"}},
       {.name = "tokens",
        .value = "X.npy",
        .help = "sequences of tokens, [sequences, tokens]: their logits are compared with the float64 reference"},
       {.name = "logits",
        .value = "Y.npy",
        .help = "logits of another program for --tokens, [sequences, tokens, vocabulary]",
        .needs = {"tokens"}},
       {.name = "outputs",
        .value = "O.safetensors",
        .help =
            "outputs of layers of another program for --tokens, [sequences, tokens, width]: `embedding`, `layer_0`, "
            "…; the first that differs is named",
        .needs = {"tokens"}},
       {.name = "limit",
        .value = "X",
        .help = "how far logits may differ, as a share of the largest, and outputs of a token, as a share "
                "of its largest (default 1e-4)",
        .needs = {"tokens"}},
       {.name = "threads", .value = "N", .help = "threads to compute with (default 1)"},
       plugins_option()},
      1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  const std::filesystem::path folder = parsed.positional[0];
  if (!checkpoint::is_hub_model(folder)) {
    throw Error(
        ErrorCode::usage,
        fmt::format("checkpoint check: {} is neither a folder with a config.json nor a GGUF file; 'shardrun checkpoint "
                    "verify' reads checkpoints of runs",
                    files::human_path(folder)));
  }
  const workload::Models models = compile::models_in(compile::directories_of(given_plugins(parsed)));
  const checkpoint::HubFolder hub(folder, models);  // refuses missing and unknown tensors
  print_folder(hub);
  checkpoint::TrainedModel trained = checkpoint::read_model(hub.source(), models);
  Findings findings;
  findings.tell(true, fmt::format("the tensors are those of the model {}, with {} parameters", trained.model.name,
                                  elements_of(hub.source().tensors)));
  if (trained.tokenizer && trained.settings.options.has("vocab")) {
    const std::int64_t vocab = trained.settings.options.integer("vocab");
    findings.tell(trained.tokenizer->vocabulary() <= vocab,
                  fmt::format("the tokenizer has {} tokens, and the model has room for {}",
                              trained.tokenizer->vocabulary(), vocab));
  }
  if (!hub.note().empty() && !parsed.has("tokens")) {
    fmt::print("note: {}\n", hub.note());
  }
  if (parsed.has("text")) {
    check_tokens(parsed, trained, findings);
  }
  if (parsed.has("tokens")) {
    check_numbers(parsed, trained, hub, findings);
  }
  return findings.holds() ? 0 : 1;
}

const RegisterCommand checkpoint_check({.name = "checkpoint check",
                                        .arguments = "FOLDER|FILE.gguf",
                                        .help = "how a model of others is read, and whether it computes the same",
                                        .run = check_folder});

}  // namespace
}  // namespace shardrun::cli
