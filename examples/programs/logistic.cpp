#include <shardrun/sdk/model.hpp>

namespace {

using namespace shardrun::sdk;

/// Logistic regression: each target is 0 or 1, and the loss is -log of the probability that x gives it.
class Logistic {
 public:
  static constexpr const char* help = "logistic regression, trained on arrays whose targets are 0 and 1";
  static constexpr std::uint32_t data = SR_DATA_ARRAYS;

  void declare(const ModelJob& job, States& states) const {
    states.parameter("weights", {{"features", job.features}, {"outputs", job.outputs}}, normal(0.01), true);
    states.parameter("bias", {{"outputs", job.outputs}}, constant(0));
  }

  /// For each target, the probability that it is 1.
  Value forward(const ModelJob& job, Function& f) const { return sigmoid(logits(job, f)); }

  Value loss(const ModelJob& job, Function& f) const {
    const Value z = logits(job, f);
    const Value y = f.input("targets", Element::f32, {{"batch", f.rows()}, {"outputs", job.outputs}});
    // log(1 + exp(z)) - y z, without overflow.
    return sum(maximum(z, 0) + log(1 + exp(-abs(z))) - y * z, {-1});
  }

 private:
  [[nodiscard]] static Value logits(const ModelJob& job, Function& f) {
    const Value x = f.input("inputs", Element::f32, {{"batch", f.rows()}, {"features", job.features}});
    return einsum("bf,fo->bo", x, f.state("weights")) + f.state("bias");
  }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(Logistic, "logistic", "1.0")
