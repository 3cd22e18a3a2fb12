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

  Value loss(const ModelJob& job, Function& f) const {
    const Dim batch{"batch", f.rows()};
    const Value x = f.input("inputs", Element::f32, {batch, {"features", job.features}});
    const Value y = f.input("targets", Element::f32, {batch, {"outputs", job.outputs}});
    const Value z = einsum("bf,fo->bo", x, f.state("weights")) + f.state("bias");
    // log(1 + exp(z)) - y z, without overflow.
    return sum(maximum(z, 0) + log(1 + exp(-abs(z))) - y * z, {-1});
  }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(Logistic, "logistic", "1.0")
