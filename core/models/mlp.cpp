#include <fmt/format.h>

#include <cmath>

#include "core/models/loss.h"
#include "core/models/model.h"

// A network of two layers: y = relu(x · W0) · W1, weights drawn from N(0, 2/inputs) (He et al. 2015, section 2.2).

namespace shardrun::models {
namespace {

using graph::DType;
using graph::FunctionBuilder;
using graph::Initializer;
using graph::ValueId;

struct Sizes {
  std::int64_t inputs, hidden, outputs;
  bool labels;
};

/// An option if it is given, else the data's value; if there are both, they must agree.
std::int64_t agree(const ModelSettings& settings, const char* name, std::int64_t data) {
  const std::int64_t given = settings.options.has(name) ? settings.options.integer(name) : data;
  if (given == 0) {
    refuse_without_data(settings, name);
  }
  if (data != 0 && given != data) {
    refuse(settings, "model", name,
           fmt::format("[model] {} = {}, but the data has {}: leave it out or correct it", name, given, data));
  }
  return given;
}

Sizes sizes(const ModelSettings& settings) {
  const bool labels = settings.options.text("loss") == "cross_entropy";
  const DataShape& data = settings.data;
  if (labels && data.outputs != 0) {
    refuse(settings, "model", "loss",
           "[model] loss = cross_entropy needs integer labels, and the second of [data] arrays holds "
           "real numbers: use loss = squared_error, or store integers");
  }
  if (!labels && data.vocab != 0) {
    refuse(settings, "model", "loss",
           "[model] loss = squared_error needs real-valued targets, and the second of [data] arrays "
           "holds integer labels: use loss = cross_entropy, or store floats");
  }
  return {.inputs = agree(settings, "inputs", data.features),
          .hidden = settings.options.integer("hidden"),
          .outputs = labels && settings.options.has("outputs") && settings.options.integer("outputs") >= data.vocab
                         ? settings.options.integer("outputs")
                         : agree(settings, "outputs", labels ? data.vocab : data.outputs),
          .labels = labels};
}

void declare(graph::Graph& graph, const ModelSettings& settings) {
  const Sizes s = sizes(settings);
  const auto he = [](std::int64_t inputs) {
    return Initializer{Initializer::Kind::normal, std::sqrt(2.0 / static_cast<double>(inputs))};
  };
  graph.layers = 2;
  parameter(graph, "layer_0/weights", {s.inputs, s.hidden}, {"features", "mlp"}, he(s.inputs), true, 0);
  parameter(graph, "layer_1/weights", {s.hidden, s.outputs}, {"mlp", "outputs"}, he(s.hidden), true, 1);
}

ValueId losses(FunctionBuilder& builder, const ModelSettings& settings, std::int64_t rows, bool) {
  const Sizes s = sizes(settings);
  const graph::Attributes product{{"contract", std::int64_t{1}}, {"transpose", std::int64_t{0}}};
  const ValueId x = builder.input("inputs", {DType::f32, {rows, s.inputs}, {"batch", "features"}});
  builder.set_layer(0);
  ValueId y =
      builder.call("relu", {builder.call("matmul", {x, builder.state("layer_0/weights")}, product, "layer_0/product")},
                   {}, "layer_0/output");
  builder.cut_point("layer.0/residual", y);
  builder.set_layer(1);
  y = builder.call("matmul", {y, builder.state("layer_1/weights")}, product, "layer_1/output");
  builder.cut_point("layer.1/residual", y);
  builder.set_layer(builder.graph().layers);
  if (s.labels) {
    return cross_entropy(builder, y, builder.input("targets", {DType::i32, {rows}, {"batch"}}));
  }
  const ValueId targets = builder.input("targets", {DType::f32, {rows, s.outputs}, {"batch", "outputs"}});
  return builder.call("squared_error", {y, targets}, {}, "losses");
}

std::int64_t losses_per_sample(const ModelSettings&) { return 1; }

const RegisterModel mlp(
    {.name = "mlp",
     .help = "two-layer ReLU network, trained on arrays",
     .options =
         {
             {.name = "hidden",
              .minimum = 1,
              .maximum = 16777216,
              .help = "width of the hidden layer",
              .aliases = {"hidden_size", "hidden_dim", "hidden_units", "hidden_layer_sizes", "width", "n_hidden",
                          "ffn_hidden_size", "intermediate_size", "d_ff"}},
             {.name = "inputs",
              .minimum = 1,
              .maximum = 16777216,
              .help = "values in a sample; from the data where there is any",
              .optional = true,
              .aliases = {"in_features", "input_size", "input_dim", "n_features", "in_dim", "d_in"}},
             {.name = "outputs",
              .minimum = 1,
              .maximum = 16777216,
              .help = "values in a target, or classes; from the data where there is any",
              .optional = true,
              .aliases = {"out_features", "output_size", "output_dim", "num_classes", "n_classes", "out_dim", "d_out",
                          "classes", "num_labels"}},
             {.name = "loss",
              .type = job::OptionType::choice,
              .default_value = "squared_error",
              .choices = {"squared_error", "cross_entropy"},
              .help = "half the squared distance of real targets, or cross-entropy of integer labels",
              .aliases = {"loss_fn", "criterion", "objective", "loss_function"},
              .choice_aliases = {{"mse", "squared_error"},
                                 {"mse_loss", "squared_error"},
                                 {"l2", "squared_error"},
                                 {"mean_squared_error", "squared_error"},
                                 {"nll", "cross_entropy"},
                                 {"nll_loss", "cross_entropy"},
                                 {"CrossEntropyLoss", "cross_entropy"},
                                 {"ce", "cross_entropy"},
                                 {"softmax", "cross_entropy"}}},
         },
     .declare = declare,
     .losses = losses,
     .losses_per_sample = losses_per_sample});

}  // namespace
}  // namespace shardrun::models
