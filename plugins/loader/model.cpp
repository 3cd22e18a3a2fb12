#include "plugins/loader/model.h"

#include <fmt/format.h>
#include <shardrun/model.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/graph/graph.h"
#include "plugins/loader/call.h"
#include "plugins/loader/find.h"
#include "plugins/loader/function_recorder.h"
#include "plugins/loader/graph_recorder.h"
#include "plugins/loader/guard.h"
#include "plugins/loader/raw_attributes.h"
#include "plugins/loader/structs.h"

namespace shardrun::plugins {
namespace {

/// A tensor that a function must have. A size of 0 stands for any.
struct ExpectedPort {
  const char* name;
  graph::DType dtype;
  std::vector<std::int64_t> shape;
};
using ExpectedPorts = std::vector<ExpectedPort>;

bool fits(const graph::TensorType& type, const ExpectedPort& expected) {
  return type.dtype == expected.dtype && type.axes.size() == expected.shape.size() && type.axes[0] == "batch" &&
         std::ranges::equal(type.shape, expected.shape,
                            [](std::int64_t size, std::int64_t wanted) { return wanted == 0 || size == wanted; });
}

bool fit(const graph::Function& function, const std::vector<graph::Port>& ports, const ExpectedPorts& expected) {
  return ports.size() == expected.size() && std::ranges::all_of(expected, [&](const ExpectedPort& each) {
           const auto port = std::ranges::find(ports, each.name, &graph::Port::name);
           return port != ports.end() && fits(function.values[port->value].type, each);
         });
}

std::string text_of(const graph::Function& function, const std::vector<graph::Port>& ports) {
  std::string text;
  for (const graph::Port& port : ports) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", port.name, to_string(function.values[port.value].type));
  }
  return text.empty() ? "none" : text;
}

std::string text_of(const ExpectedPorts& expected) {
  std::string text;
  for (const ExpectedPort& port : expected) {
    text += fmt::format("{}{} {}[batch {}", text.empty() ? "" : ", ", port.name, to_string(port.dtype), port.shape[0]);
    for (std::size_t d = 1; d < port.shape.size(); ++d) {
      text += port.shape[d] == 0 ? ", ..." : fmt::format(", {}", port.shape[d]);
    }
    text += "]";
  }
  return text.empty() ? "none" : text;
}

std::vector<ExpectedPorts> inputs_of_data(std::uint32_t kinds, const ModelRequest& request, std::int64_t rows) {
  using graph::DType;
  std::vector<ExpectedPorts> found;
  if ((kinds & SR_DATA_TOKENS) != 0) {
    const std::int64_t seq = request.options.has("context") ? request.options.integer("context") : 0;
    found.push_back({{"inputs", DType::i32, {rows, seq}}, {"targets", DType::i32, {rows, seq}}});
  }
  if ((kinds & SR_DATA_ARRAYS) != 0) {
    found.push_back(
        {{"inputs", DType::f32, {rows, request.features}}, {"targets", DType::f32, {rows, request.outputs}}});
  }
  if ((kinds & SR_DATA_LABELS) != 0) {
    found.push_back({{"inputs", DType::f32, {rows, request.features}}, {"targets", DType::i32, {rows}}});
  }
  return found.empty() ? std::vector<ExpectedPorts>{{}} : found;
}

/// Keeps only the first input of each list, because the function `forward` has no other.
std::vector<ExpectedPorts> inputs_of_forward(std::vector<ExpectedPorts> of_loss) {
  std::ranges::for_each(of_loss, [](ExpectedPorts& ports) { ports.resize(std::min<std::size_t>(ports.size(), 1)); });
  return of_loss;
}

/// Throws Error{plugin} unless there is one output, `outputs`, f32 [batch, ...].
void require_outputs(const graph::Function& function, std::int64_t rows) {
  const bool is_one = function.outputs.size() == 1 && function.outputs[0].name == "outputs";
  const graph::TensorType* const type = is_one ? &function.values[function.outputs[0].value].type : nullptr;
  if (type == nullptr || type->dtype != graph::DType::f32 || type->shape.empty() || type->axes[0] != "batch" ||
      type->shape[0] != rows) {
    refuse_with(fmt::format("the outputs of the function '{}' are {}; expected outputs f32[batch {}, ...]",
                            function.name, text_of(function, function.outputs), rows));
  }
}

void require_one_of(const graph::Function& function, const char* what, const std::vector<graph::Port>& ports,
                    const std::vector<ExpectedPorts>& expected) {
  if (std::ranges::any_of(expected, [&](const ExpectedPorts& each) { return fit(function, ports, each); })) {
    return;
  }
  std::string text;
  for (const ExpectedPorts& each : expected) {
    text += (text.empty() ? "" : ", or ") + text_of(each);
  }
  refuse_with(fmt::format("the {} of the function '{}' are {}; expected {}", what, function.name,
                          text_of(function, ports), text));
}

/// Throws Error{plugin} if a function does not have the inputs and outputs that shardrun/model.h demands for its name:
/// - `loss`: the inputs of the data;
/// - `iterate`: those, or none;
/// - `predict`: a sequence and its logits;
/// - `decode`: tokens, their positions and the logits;
/// - `forward`: the data's input and an output for each sample.
/// `kinds`: SR_DATA_... bits, one of which the inputs must fit; 0: no data.
/// `answers`: the number of rows of the logits of `decode`.
void check_ports(const graph::Function& function, std::string_view name, std::uint32_t kinds,
                 const ModelRequest& request, std::int64_t rows, std::int64_t length, std::int64_t answers) {
  if (name == "loss") {
    require_one_of(function, "inputs", function.inputs, inputs_of_data(kinds, request, rows));
  } else if (name == "iterate") {
    require_one_of(function, "inputs", function.inputs,
                   rows == 0 ? std::vector<ExpectedPorts>{{}} : inputs_of_data(kinds, request, rows));
  } else if (name == "predict") {
    require_one_of(function, "inputs", function.inputs, {{{"inputs", graph::DType::i32, {1, 0}}}});
    require_one_of(function, "outputs", function.outputs, {{{"logits", graph::DType::f32, {1, 0}}}});
  } else if (name == "decode") {
    require_one_of(function, "inputs", function.inputs,
                   {{{"inputs", graph::DType::i32, {rows, length}},
                     {"positions", graph::DType::i32, {rows, length}},
                     {"pages", graph::DType::i32, {rows, request.caches.of_sequence}}}});
    require_one_of(function, "outputs", function.outputs, {{{"logits", graph::DType::f32, {answers, 0}}}});
  } else if (name == "forward") {
    if (kinds == 0) {
      refuse_with("the function 'forward' is applied to data, and the model takes none");
    }
    require_one_of(function, "inputs", function.inputs, inputs_of_forward(inputs_of_data(kinds, request, rows)));
    require_outputs(function, rows);
  }
}

std::string table_name_of(const Plugin& plugin) {
  return fmt::format("the function table of {}", plugin.path().string());
}

sr_model table_of(const Plugin& plugin) {
  return read_struct<sr_model>(plugin.table().functions, SR_MODEL_SIZE_1_7, table_name_of(plugin));
}

/// The role of a function with this name; 0 if the host does not know the name.
std::uint32_t known_role(std::string_view function) {
  if (function == "loss") {
    return SR_FUNCTION_REPEATED;
  }
  if (function == "iterate") {
    return SR_FUNCTION_ONCE;
  }
  const bool is_known = function == "predict" || function == "forward" || function == "decode";
  return is_known ? SR_FUNCTION_ON_DEMAND : 0;
}

/// The name of a function that the model declares. Functions on demand may have any name.
std::string checked_name(const sr_function& function, const std::string& what) {
  const std::string name = function.name != nullptr ? printable(excerpt(function.name)) : "";
  const std::uint32_t expected = known_role(name);
  if (name.empty() || function.role != (expected == 0 ? SR_FUNCTION_ON_DEMAND : expected)) {
    refuse_with(fmt::format("{}, '{}', has role {}; expected loss with {}, iterate with {}, or another name with {}",
                            what, name, function.role, SR_FUNCTION_REPEATED, SR_FUNCTION_ONCE, SR_FUNCTION_ON_DEMAND));
  }
  return name;
}

/// The request in its C form. It points into `options`.
struct RawJob {
  RawJob(const ModelRequest& request, const OptionValues& values) : options(raw_options(values)) {
    job = {sizeof(sr_model_job),
           request.data,
           options.data(),
           static_cast<std::uint32_t>(options.size()),
           sizeof(sr_option_value),
           request.vocab,
           request.features,
           request.outputs,
           request.caches.pages,
           request.caches.page,
           request.caches.of_sequence};
  }

  std::vector<sr_option_value> options;
  sr_model_job job{};
};

/// Calls the model: `call` takes the model's table, the job and an sr_error*. Throws Error. If the host refused
/// something in the call, the error is that refusal and not what the model says. A refusal counts as an error of the
/// job if the model takes data and the job has none.
template <class Recorder, class Call>
void call_model(const Plugin& plugin, const ModelRequest& request, std::string_view function, Recorder& recorder,
                Call call) {
  const std::string name = fmt::format("model '{}'", plugin.manifest().name);
  const sr_model table = table_of(plugin);
  const OptionValues options = checked_with_defaults(plugin.options(), request.options);
  const RawJob raw(request, options);
  try {
    const CallGuard guard(label_of(plugin), function, call_limit());
    call_plugin(name, ErrorCode::job, [&](sr_error* error) { return call(table, raw.job, error); });
  } catch (const Error&) {
    if (!recorder.refusal()) {
      throw;
    }
  }
  if (const std::optional<Error>& refusal = recorder.refusal()) {
    if (refusal->code() == ErrorCode::job) {
      throw *refusal;
    }
    const std::string what =
        fmt::format("{} ({}) wrote what cannot be: {}", name, plugin.path().string(), refusal->message());
    if (table.data != 0 && request.data == 0 && function != "iterate") {
      const std::string reason = "[data] is missing, so features, outputs and vocab are 0: " + what;
      throw Invalid(ErrorCode::job, reason, reason, "data");
    }
    refuse_with(what);
  }
}

/// Like call_model(), for the model's functions that concern folders of other libraries. Not all of them take a job.
template <class Recorder, class Call>
void call_for_folders(const Plugin& plugin, std::string_view function, Recorder& recorder, Call call) {
  const std::string name = fmt::format("model '{}'", plugin.manifest().name);
  try {
    const CallGuard guard(label_of(plugin), function, call_limit());
    call_plugin(name, ErrorCode::data, [&](sr_error* error) { return call(table_of(plugin), error); });
  } catch (const Error&) {
    if (!recorder.refusal()) {
      throw;
    }
  }
  if (const std::optional<Error>& refusal = recorder.refusal()) {
    if (refusal->code() == ErrorCode::job) {
      throw *refusal;
    }
    refuse_with(fmt::format("{} ({}) wrote what cannot be: {}", name, plugin.path().string(), refusal->message()));
  }
}

}  // namespace

Model::Model(Plugin plugin) : plugin_(std::move(plugin)) {
  const sr_model table = table_of(plugin_);
  const std::string what = table_name_of(plugin_);
  if (table.declare == nullptr || table.write_function == nullptr) {
    throw Error(ErrorCode::plugin, fmt::format("{} lacks declare or write_function", what));
  }
  help_ = table.help != nullptr ? printable(excerpt(table.help)) : "";
  data_ = table.data;
  for (std::uint32_t f = 0; f < table.function_count; ++f) {
    const std::string function = fmt::format("{}: function {}", what, f);
    std::string name = checked_name(
        read_element<sr_function>(table.functions, table.function_stride, f, SR_FUNCTION_SIZE_1_7, function), function);
    if (has(name)) {
      refuse_with(fmt::format("{} is called '{}' like an earlier one", function, name));
    }
    functions_.push_back(std::move(name));
  }
  ops_ = register_ops(plugin_, table);
  if (table.architectures != nullptr) {
    if (table.read_config == nullptr || table.write_config == nullptr || table.name_tensors == nullptr) {
      throw Error(ErrorCode::plugin,
                  fmt::format("{} has architectures and lacks read_config, write_config or name_tensors", what));
    }
    std::istringstream words(printable(excerpt(table.architectures)));
    architectures_ = {std::istream_iterator<std::string>(words), {}};
  }
}

std::vector<std::shared_ptr<const ModelOp>> declared_ops(const Plugin& model) {
  return read_ops(model, table_of(model));
}

Model Model::open(const Directories& directories, std::string_view name, LogSink log) {
  return Model(Plugin::open(directories, PluginKind::model, name, std::move(log)));
}

bool Model::has(std::string_view function) const noexcept {
  return std::ranges::find(functions_, function) != functions_.end();
}

void Model::declare(graph::Graph& graph, const ModelRequest& request) const {
  StateRecorder recorder(graph);
  call_model(plugin_, request, "declare", recorder,
             [&](const sr_model& table, const sr_model_job& job, sr_error* error) {
               return table.declare(plugin_.table().self, &job, &recorder.writer(), error);
             });
  for (const graph::State& state : graph.states) {
    if (state.layer >= std::max(graph.layers, 1)) {
      refuse_with(fmt::format("model '{}' ({}): state '{}' belongs to layer {} of {}", manifest().name,
                              plugin_.path().string(), state.name, state.layer, graph.layers));
    }
  }
}

graph::Losses Model::write_function(graph::FunctionBuilder& builder, const ModelRequest& request,
                                    std::string_view function, std::int64_t rows, bool training,
                                    std::int64_t length) const {
  const auto index = std::ranges::find(functions_, function) - functions_.begin();
  sr_function_request raw{};
  raw.struct_size = sizeof(raw);
  raw.function = static_cast<std::uint32_t>(index);
  raw.rows = rows;
  raw.training = training ? 1 : 0;
  raw.length = length;
  FunctionRecorder recorder(builder, rows, manifest().name);
  call_model(plugin_, request, function, recorder,
             [&](const sr_model& table, const sr_model_job& job, sr_error* error) {
               return table.write_function(plugin_.table().self, &job, &raw, &recorder.writer(), error);
             });
  const graph::Losses& losses = recorder.losses();
  if ((known_role(function) == SR_FUNCTION_REPEATED) != losses.values.exists()) {
    refuse_with(fmt::format("model '{}' ({}): the function '{}' {} set_losses", manifest().name,
                            plugin_.path().string(), function, losses.values.exists() ? "calls" : "does not call"));
  }
  if (losses.counts.exists() && !losses.values.exists()) {
    refuse_with(fmt::format("model '{}' ({}): the function '{}' calls set_loss_counts, which is for 'loss'",
                            manifest().name, plugin_.path().string(), function));
  }
  try {
    check_ports(builder.function(), function, request.data != 0 ? request.data & data_ : data_, request, rows, length,
                builder.positions_taken(rows, length));
  } catch (const Error& refused) {
    refuse_with(fmt::format("model '{}' ({}): {}", manifest().name, plugin_.path().string(), refused.message()));
  }
  return losses;
}

OptionValues Model::read_config(const std::vector<sdk::ConfigValue>& config) const {
  std::vector<sr_config_value> raw;
  std::ranges::transform(config, std::back_inserter(raw), [](const auto& value) { return sdk::detail::write(value); });
  ConfigReading reading(options());
  call_for_folders(plugin_, "read_config", reading, [&](const sr_model& table, sr_error* error) {
    return table.read_config(plugin_.table().self, raw.data(), static_cast<std::uint32_t>(raw.size()),
                             sizeof(sr_config_value), &reading.reader(), error);
  });
  for (const sdk::ConfigValue& value : config) {
    if (!reading.knows(value.key)) {
      const std::string reason = fmt::format(
          "config.json: {} = {}: the model '{}' does not know this key, which may "
          "change what it computes; remove it if it does not",
          printable(excerpt(value.key).substr(0, 200)), printable(excerpt(value.text).substr(0, 200)), manifest().name);
      throw Invalid(ErrorCode::data, reason, reason, "");
    }
  }
  return reading.options();
}

std::vector<sdk::ConfigValue> Model::write_config(const ModelRequest& request) const {
  const OptionValues options = checked_with_defaults(plugin_.options(), request.options);
  const RawJob job(request, options);
  ConfigWriting writing;
  call_for_folders(plugin_, "write_config", writing, [&](const sr_model& table, sr_error* error) {
    return table.write_config(plugin_.table().self, &job.job, &writing.writer(), error);
  });
  return writing.values();
}

std::vector<sdk::TensorName> Model::tensor_names(const graph::Graph& graph, const ModelRequest& request) const {
  const OptionValues options = checked_with_defaults(plugin_.options(), request.options);
  const RawJob job(request, options);
  NameRecorder recorder(graph);
  call_for_folders(plugin_, "name_tensors", recorder, [&](const sr_model& table, sr_error* error) {
    return table.name_tensors(plugin_.table().self, &job.job, &recorder.namer(), error);
  });
  return recorder.names();
}

}  // namespace shardrun::plugins
