#include <shardrun/sdk/model.hpp>

namespace {

using namespace shardrun::sdk;

/// A network of two layers: y = relu(x w0) w1, trained on the squared error.
class ReluNetwork {
 public:
  static constexpr const char* help = "two layers with a ReLU between them, trained on arrays of real numbers";
  static constexpr std::uint32_t data = SR_DATA_ARRAYS;

  static std::vector<Option> options() { return {integer_option("width", 64, 1, 1 << 20, "hidden units")}; }

  void declare(const ModelJob& job, States& states) const {
    const Dim features{"features", job.features};
    const Dim hidden{"mlp", job.options.integer("width")};
    const Dim outputs{"outputs", job.outputs};
    states.parameter("w0", {features, hidden}, normal(0.1), true);
    states.parameter("w1", {hidden, outputs}, normal(0.1), true);
  }

  Value forward(const ModelJob& job, Function& f) const {
    const Value x = f.input("inputs", Element::f32, {{"batch", f.rows()}, {"features", job.features}});
    const Value hidden = relu(einsum("bf,fh->bh", x, f.state("w0")));
    return einsum("bh,ho->bo", hidden, f.state("w1"));
  }

  Value loss(const ModelJob& job, Function& f) const {
    const Value y = forward(job, f);
    return squared_error(y, f.input("targets", Element::f32, {{"batch", f.rows()}, {"outputs", job.outputs}}));
  }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(ReluNetwork, "relu_network", "1.0")
