#include <shardrun/sdk/model.hpp>

#include <cmath>
#include <string>
#include <vector>

namespace {

using namespace shardrun::sdk;

struct Sizes {
  std::int64_t inputs, hidden, outputs;
  bool labels;
};

/// The value of an option if it is given, else the data's value. If there are both, they must agree.
std::int64_t agree(const ModelJob& job, const std::string& name, std::int64_t data) {
  const std::int64_t given = job.options.has(name) ? job.options.integer(name) : data;
  if (given == 0) {
    throw InvalidJob("[data] is missing: set text, tokens or arrays; [model] " + name + " is enough for a plan",
                     "data");
  }
  if (data != 0 && given != data) {
    throw InvalidJob("[model] " + name + " = " + std::to_string(given) + ", but the data has " + std::to_string(data) +
                         ": leave it out or correct it",
                     "model." + name);
  }
  return given;
}

Sizes sizes(const ModelJob& job) {
  const bool labels = job.options.text("loss") == "cross_entropy";
  if (labels && job.outputs != 0) {
    throw InvalidJob(
        "[model] loss = cross_entropy needs integer labels, and the second of [data] arrays holds real numbers: use "
        "loss = squared_error, or store integers",
        "model.loss");
  }
  if (!labels && job.vocab != 0) {
    throw InvalidJob(
        "[model] loss = squared_error needs real-valued targets, and the second of [data] arrays holds integer labels: "
        "use loss = cross_entropy, or store floats",
        "model.loss");
  }
  return {.inputs = agree(job, "inputs", job.features),
          .hidden = job.options.integer("hidden"),
          .outputs = labels && job.options.has("outputs") && job.options.integer("outputs") >= job.vocab
                         ? job.options.integer("outputs")
                         : agree(job, "outputs", labels ? job.vocab : job.outputs),
          .labels = labels};
}

/// A network of two layers: y = relu(x · W0) · W1. Weights are drawn from N(0, 2/inputs) (He et al. 2015, section 2.2).
class Mlp {
 public:
  static constexpr const char* help = "two-layer ReLU network, trained on arrays";
  static constexpr std::uint32_t data = SR_DATA_ARRAYS | SR_DATA_LABELS;

  static std::vector<Option> options() {
    constexpr std::int64_t most = 16777216;
    return {
        also_called(required(integer_option("hidden", 1, 1, most, "width of the hidden layer")),
                    "hidden_size hidden_dim hidden_units hidden_layer_sizes width n_hidden ffn_hidden_size "
                    "intermediate_size d_ff"),
        also_called(
            optional(integer_option("inputs", 1, 1, most, "values in a sample; from the data where there is any")),
            "in_features input_size input_dim n_features in_dim d_in"),
        also_called(optional(integer_option("outputs", 1, 1, most,
                                            "values in a target, or classes; from the data where there is any")),
                    "out_features output_size output_dim num_classes n_classes out_dim d_out classes num_labels"),
        also_called(text_option("loss", "squared_error", {"squared_error", "cross_entropy"},
                                "half the squared distance of real targets, or cross-entropy of integer labels"),
                    "loss_fn criterion objective loss_function",
                    {{"mse", "squared_error"},
                     {"mse_loss", "squared_error"},
                     {"l2", "squared_error"},
                     {"mean_squared_error", "squared_error"},
                     {"nll", "cross_entropy"},
                     {"nll_loss", "cross_entropy"},
                     {"CrossEntropyLoss", "cross_entropy"},
                     {"ce", "cross_entropy"},
                     {"softmax", "cross_entropy"}}),
    };
  }

  void declare(const ModelJob& job, States& states) const {
    const Sizes s = sizes(job);
    const auto he = [](std::int64_t inputs) { return normal(std::sqrt(2.0 / static_cast<double>(inputs))); };
    states.set_layers(2);
    states.parameter("layer_0/weights", {{"features", s.inputs}, {"mlp", s.hidden}}, he(s.inputs), true, 0);
    states.parameter("layer_1/weights", {{"mlp", s.hidden}, {"outputs", s.outputs}}, he(s.hidden), true, 1);
  }

  Value forward(const ModelJob& job, Function& f) const {
    const Value x = f.input("inputs", Element::f32, {{"batch", f.rows()}, {"features", sizes(job).inputs}});
    f.set_layer(0);
    const Value hidden = relu(matmul(x, f.state("layer_0/weights"), 1, "layer_0/product"), "layer_0/output");
    f.cut_point("layer.0/residual", hidden);
    f.set_layer(1);
    const Value y = matmul(hidden, f.state("layer_1/weights"), 1, "layer_1/output");
    f.cut_point("layer.1/residual", y);
    f.set_layer(2);
    return y;
  }

  Value loss(const ModelJob& job, Function& f) const {
    const Sizes s = sizes(job);
    const Dim batch{"batch", f.rows()};
    const Value y = forward(job, f);
    if (s.labels) {
      return cross_entropy(y, f.input("targets", Element::i32, {batch}));
    }
    return squared_error(y, f.input("targets", Element::f32, {batch, {"outputs", s.outputs}}), "losses");
  }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(Mlp, "mlp", "1.0")
