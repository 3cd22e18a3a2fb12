#include <shardrun/sdk/model.hpp>

namespace {

using namespace shardrun::sdk;

/// Two linear layers that learn from some of the samples only.
class Masked {
 public:
  static constexpr const char* help = "two linear layers, trained on the samples whose first value is positive";
  static constexpr std::uint32_t data = SR_DATA_ARRAYS;

  void declare(const ModelJob& job, States& states) const {
    const Dim hidden{"mlp", 4};
    states.set_layers(2);
    states.parameter("w0", {{"features", job.features}, hidden}, constant(0.1), true, 0);
    states.parameter("w1", {hidden, {"outputs", job.outputs}}, constant(0.2), true, 1);
  }

  Value forward(const ModelJob& job, Function& f) const { return applied(samples(job, f), f); }

  Loss loss(const ModelJob& job, Function& f) const {
    const Dim batch{"batch", f.rows()};
    const Value x = samples(job, f);
    const Value targets = f.input("targets", Element::f32, {batch, {"outputs", job.outputs}});
    const Value found = applied(x, f);
    const Value counts = reshape(slice(x, 1, 0, 1), {batch}) > 0;
    return {squared_error(found, targets) * counts, counts};
  }

 private:
  [[nodiscard]] static Value samples(const ModelJob& job, Function& f) {
    return f.input("inputs", Element::f32, {{"batch", f.rows()}, {"features", job.features}});
  }

  [[nodiscard]] static Value applied(const Value& x, Function& f) {
    f.set_layer(0);
    const Value hidden = einsum("bf,fh->bh", x, f.state("w0"));
    f.set_layer(1);
    const Value found = einsum("bh,ho->bo", hidden, f.state("w1"));
    f.set_layer(2);
    return found;
  }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(Masked, "masked", "1.0")
