#include "plugins/loader/function_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "core/base/suggest.h"
#include "plugins/loader/call.h"
#include "plugins/loader/raw_attributes.h"
#include "plugins/loader/structs.h"

namespace shardrun::plugins {

using graph::StateId;
using graph::ValueId;

namespace {

/// Finds an op that every model may call, or one that this model brings. Throws Error{plugin} if there is none.
const graph::Op& op_from(const std::string& name, const std::string& model) {
  if (const graph::Op* const own = graph::find_op_of(model, name)) {
    return *own;
  }
  std::vector<std::string> names;
  for (const graph::Op* op : graph::all_ops()) {
    if (!op->help.empty()) {
      names.push_back(op->name);
    }
  }
  if (std::ranges::find(names, name) == names.end()) {
    refuse_with(fmt::format("models have no op of that name{}", did_you_mean(name, names)));
  }
  return graph::find_op(name);
}

StateId known_state(const graph::Graph& graph, const std::string& name) {
  const StateId id = graph.find_state(name);
  if (!id.exists()) {
    std::vector<std::string> names;
    for (const graph::State& state : graph.states) {
      names.push_back(state.name);
    }
    refuse_with(fmt::format("the model has no state of that name{}", did_you_mean(name, names)));
  }
  return id;
}

/// Takes the place of functions of the table that gradients of ops must not use. Refuses every call.
template <class... Arguments>
std::int32_t refuse_function(void* self, Arguments... arguments) {
  sr_error* const error = std::get<sizeof...(Arguments) - 1>(std::tuple(arguments...));
  return record_in<FunctionRecorder>(self, error, "the table", nullptr, [](FunctionRecorder&) {
    refuse_with("a gradient is made of ops: it may use call and type_of only");
  });
}

}  // namespace

std::uint32_t value_number(ValueId id) { return static_cast<std::uint32_t>(id.number()) + 1; }

/// A type in its C form.
struct FunctionRecorder::HeldType {
  explicit HeldType(graph::TensorType held) : type(std::move(held)) {
    for (const std::string& axis : type.axes) {
      axes.push_back(axis.c_str());
    }
    raw = {sizeof(sr_tensor_type),
           type.dtype == graph::DType::i32 ? SR_ELEMENT_I32 : SR_ELEMENT_F32,
           type.shape.data(),
           axes.data(),
           static_cast<std::uint32_t>(type.shape.size()),
           0};
  }
  HeldType(const HeldType&) = delete;
  HeldType& operator=(const HeldType&) = delete;

  graph::TensorType type;
  std::vector<const char*> axes;
  sr_tensor_type raw{};
};

FunctionRecorder::FunctionRecorder(graph::FunctionBuilder& builder, std::int64_t rows, std::string model)
    : builder_(builder), rows_(rows), model_(std::move(model)) {
  writer_.struct_size = sizeof(writer_);
  writer_.self = this;
  set_functions();
}

FunctionRecorder::~FunctionRecorder() = default;

void FunctionRecorder::take_calls_only() {
  writer_.input = refuse_function;
  writer_.state = refuse_function;
  writer_.gradient = refuse_function;
  writer_.cut_point = refuse_function;
  writer_.set_layer = refuse_function;
  writer_.set_scope = refuse_function;
  writer_.write = refuse_function;
  writer_.output = refuse_function;
  writer_.set_losses = refuse_function;
  writer_.set_loss_counts = refuse_function;
}

void FunctionRecorder::set_functions() {
  using Self = FunctionRecorder;
  writer_.input = [](void* self, const char* name, const sr_tensor_type* type, std::uint32_t* value, sr_error* error) {
    return record_in<Self>(self, error, "input", name, [&](Self& to) { *value = to.input(name, type); });
  };
  writer_.state = [](void* self, const char* name, std::uint32_t* value, sr_error* error) {
    return record_in<Self>(self, error, "state", name, [&](Self& to) { *value = to.state(name); });
  };
  writer_.call = [](void* self, const sr_call* call, std::uint32_t* results, std::uint32_t room, std::uint32_t* count,
                    sr_error* error) {
    return record_in<Self>(self, error, "call", call != nullptr ? call->op : nullptr, [&](Self& to) {
      const std::vector<ValueId> made = to.call(call);
      *count = static_cast<std::uint32_t>(made.size());
      std::transform(made.begin(), made.begin() + std::min<std::ptrdiff_t>(room, std::ssize(made)), results,
                     value_number);
    });
  };
  writer_.type_of = [](void* self, std::uint32_t value, const sr_tensor_type** type, sr_error* error) {
    return record_in<Self>(self, error, "type_of", nullptr, [&](Self& to) { *type = to.type_of(value); });
  };
  writer_.gradient = [](void* self, std::uint32_t scalar, const std::uint32_t* of, std::uint32_t count,
                        std::uint32_t* gradients, sr_error* error) {
    return record_in<Self>(self, error, "gradient", nullptr, [&](Self& to) {
      std::ranges::transform(to.gradient(scalar, of, count), gradients, value_number);
    });
  };
  writer_.cut_point = [](void* self, const char* name, std::uint32_t value, sr_error* error) {
    return record_in<Self>(self, error, "cut_point", name, [&](Self& to) { to.cut_point(name, value); });
  };
  writer_.set_layer = [](void* self, std::int32_t layer, sr_error* error) {
    return record_in<Self>(self, error, "set_layer", nullptr, [&](Self& to) { to.set_layer(layer); });
  };
  writer_.set_scope = [](void* self, const char* scope, sr_error* error) {
    return record_in<Self>(self, error, "set_scope", scope, [&](Self& to) { to.set_scope(scope); });
  };
  writer_.write = [](void* self, const char* state, std::uint32_t value, sr_error* error) {
    return record_in<Self>(self, error, "write", state, [&](Self& to) { to.write(state, value); });
  };
  writer_.output = [](void* self, const char* name, std::uint32_t value, sr_error* error) {
    return record_in<Self>(self, error, "output", name, [&](Self& to) { to.output(name, value); });
  };
  writer_.set_losses = [](void* self, std::uint32_t losses, sr_error* error) {
    return record_in<Self>(self, error, "set_losses", nullptr, [&](Self& to) { to.set_losses(losses); });
  };
  writer_.set_loss_counts = [](void* self, std::uint32_t counts, sr_error* error) {
    return record_in<Self>(self, error, "set_loss_counts", nullptr, [&](Self& to) { to.set_loss_counts(counts); });
  };
}

ValueId FunctionRecorder::value(std::uint32_t number) const {
  if (number == 0 || number > builder_.function().values.size()) {
    refuse_with(fmt::format("there is no value {}", number));
  }
  return ValueId(number - 1);
}

std::vector<ValueId> FunctionRecorder::values(const std::uint32_t* numbers, std::uint32_t count) const {
  if (numbers == nullptr && count > 0) {
    refuse_with(fmt::format("{} values are announced and none is given", count));
  }
  std::vector<ValueId> ids;
  for (std::uint32_t i = 0; i < count; ++i) {
    ids.push_back(value(numbers[i]));
  }
  return ids;
}

void FunctionRecorder::require_earlier(ValueId read) const {
  const graph::Value& value = builder_.function().values[read];
  const std::int32_t made = value.producer.exists() ? builder_.function().nodes[value.producer].layer : -1;
  if (builder_.phase() == graph::Phase::forward && made > builder_.layer()) {
    refuse_with(
        fmt::format("layer {} reads '{}' of layer {}: a layer reads values of earlier layers only, so call "
                    "set_layer with rising numbers",
                    builder_.layer(), value.name, made));
  }
}

std::uint32_t FunctionRecorder::input(const char* name, const sr_tensor_type* type) {
  const std::string given = plain_name_from(name, "the name");
  if (std::ranges::find(builder_.function().inputs, given, &graph::Port::name) != builder_.function().inputs.end()) {
    refuse_with("there is an input of that name already");
  }
  return value_number(builder_.input(given, type_from(type)));
}

std::uint32_t FunctionRecorder::state(const char* name) {
  const std::string given = name_from(name, "the name");
  return value_number(builder_.state(known_state(builder_.graph(), given)));
}

std::vector<ValueId> FunctionRecorder::call(const sr_call* call) {
  const auto raw = read_struct<sr_call>(call, SR_CALL_SIZE_1_7, "the call");
  const graph::Op& op = op_from(name_from(raw.op, "the op"), model_);
  graph::Attributes attributes = attributes_from(raw.attributes, raw.attribute_count, raw.attribute_stride);
  graph::check_attributes(op.attributes, attributes);
  for (const auto& [name, scalar] : attributes.entries()) {
    const auto* text = std::get_if<std::string>(&scalar);
    if (text != nullptr && !text->empty()) {
      static_cast<void>(name_from(text->c_str(), fmt::format("the attribute '{}'", name)));
    }
  }
  std::vector<ValueId> operands = values(raw.operands, raw.operand_count);
  std::ranges::for_each(operands, [&](ValueId operand) { require_earlier(operand); });
  return builder_.call_all(op.name, std::move(operands), std::move(attributes),
                           raw.name != nullptr ? name_from(raw.name, "the name") : std::string());
}

const sr_tensor_type* FunctionRecorder::type_of(std::uint32_t number) {
  std::unique_ptr<HeldType>& held = types_[number];
  if (held == nullptr) {
    held = std::make_unique<HeldType>(builder_.type(value(number)));
  }
  return &held->raw;
}

std::vector<ValueId> FunctionRecorder::gradient(std::uint32_t scalar, const std::uint32_t* of, std::uint32_t count) {
  require_earlier(value(scalar));
  return graph::gradients(builder_, value(scalar), values(of, count));
}

void FunctionRecorder::cut_point(const char* name, std::uint32_t number) {
  builder_.cut_point(plain_name_from(name, "the name"), value(number));
}

void FunctionRecorder::set_layer(std::int32_t layer) {
  if (layer < -1 || layer > builder_.graph().layers) {
    refuse_with(fmt::format("there is no layer {}: expected -1 to {}", layer, builder_.graph().layers));
  }
  builder_.set_layer(layer);
}

void FunctionRecorder::set_scope(const char* scope) {
  builder_.set_scope(scope != nullptr ? plain_name_from(scope, "the scope") : std::string());
}

void FunctionRecorder::write(const char* state, std::uint32_t number) {
  const StateId id = known_state(builder_.graph(), name_from(state, "the name"));
  if (builder_.function().role == graph::Role::repeated) {
    refuse_with("a function that is repeated for each microbatch writes no state");
  }
  if (!written_.insert(id).second) {
    refuse_with("the function has written that state already");
  }
  ValueId written = value(number);
  const StateId source = builder_.function().values[written].state;
  if (source == id) {
    return;  // nothing to write: the state keeps its value
  }
  if (source.exists()) {
    // Copies the source, because the function can write the source, too, perhaps before this write.
    written = builder_.call("copy", {written}, {}, "copy/" + builder_.graph().states[source].name);
  }
  builder_.write(id, written, graph::StateWrite::Mode::assign);
}

namespace {

/// Whether the file of an output would have the name that another output's file has after some number of steps:
/// "o-000100" for "o".
bool is_name_after_steps(std::string_view name, std::string_view of) {
  constexpr std::size_t fewest_digits = 6;
  if (name.size() < of.size() + 1 + fewest_digits || !name.starts_with(of) || name[of.size()] != '-') {
    return false;
  }
  const std::string_view step = name.substr(of.size() + 1);
  return step.find_first_not_of("0123456789") == std::string_view::npos &&
         (step.size() == fewest_digits || step.front() != '0');
}

}  // namespace

void FunctionRecorder::output(const char* name, std::uint32_t number) {
  const std::string given = plain_name_from(name, "the name");
  if (given.front() == '.' || given.find('/') != std::string::npos) {
    refuse_with("the name of an output is one of a file: without '/', and not beginning with '.'");
  }
  if (std::ranges::find(builder_.function().outputs, given, &graph::Port::name) != builder_.function().outputs.end()) {
    refuse_with("there is an output of that name already");
  }
  for (const graph::Port& other : builder_.function().outputs) {
    if (is_name_after_steps(given, other.name) || is_name_after_steps(other.name, given)) {
      refuse_with(fmt::format("its file would have the name of one of output '{}' after some step: call it otherwise",
                              other.name));
    }
  }
  const ValueId id = value(number);
  if (builder_.function().role == graph::Role::repeated) {
    refuse_with("a function that is repeated for each microbatch has no outputs");
  }
  if (builder_.type(id).dtype != graph::DType::f32 || builder_.graph().find_state(given).exists()) {
    refuse_with(fmt::format("it is {}; expected f32, and a name that no state has", to_string(builder_.type(id))));
  }
  builder_.output(given, id);
}

void FunctionRecorder::set_losses(std::uint32_t losses) {
  const ValueId id = value(losses);
  const graph::TensorType& type = builder_.type(id);
  if (type.dtype != graph::DType::f32 || type.shape.empty() || type.shape.front() != rows_ ||
      type.axes.front() != "batch") {
    refuse_with(fmt::format("the losses are {}, expected f32[batch {}, ...], of which the host takes the mean",
                            to_string(type), rows_));
  }
  losses_.values = id;
}

void FunctionRecorder::set_loss_counts(std::uint32_t counts) {
  const ValueId id = value(counts);
  if (builder_.type(id).dtype != graph::DType::f32) {
    refuse_with(fmt::format("the counts are {}, expected f32", to_string(builder_.type(id))));
  }
  losses_.counts = id;
}

}  // namespace shardrun::plugins
