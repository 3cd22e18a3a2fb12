#include <cmath>

#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

/// norm² [] -> the factor [] that reduces a norm above `limit` to `limit` (Pascanu, Mikolov and Bengio 2013,
/// arXiv:1211.5063, algorithm 1), and the norm []. A limit of 0 is no limit.
void clip_scale(const KernelCall& call) {
  const double limit = call.attributes.real("limit");
  const double norm = std::sqrt(reals(call.inputs[0])[0]);
  reals(call.outputs[0])[0] = limit > 0 && norm > limit ? limit / (norm + 1e-6) : 1;
  reals(call.outputs[1])[0] = norm;
}

/// Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2, with the decay multiplied by the learning rate.
/// parameter, first and second moment, gradient[, scale []] -> parameter, first and second moment
void adamw(const KernelCall& call) {
  const double beta1 = call.attributes.real("beta1");
  const double beta2 = call.attributes.real("beta2");
  const double epsilon = call.attributes.real("epsilon");
  const double decay = call.attributes.real("decay");
  const double rate = call.scalars.learning_rate;
  const auto t = static_cast<double>(call.scalars.step + 1);
  const double weight1 = 1 - std::pow(beta1, t);
  const double weight2 = 1 - std::pow(beta2, t);
  const double scale = call.inputs.size() > 4 ? reals(call.inputs[4])[0] : 1;
  for_each(call, call.inputs[0].elements(), 1, [&](std::int64_t i) {
    const double p = reals(call.inputs[0])[i];
    const double g = reals(call.inputs[3])[i] * scale;
    const double m = beta1 * reals(call.inputs[1])[i] + (1 - beta1) * g;
    const double v = beta2 * reals(call.inputs[2])[i] + (1 - beta2) * g * g;
    const double m_hat = m / weight1;
    const double v_hat = v / weight2;
    reals(call.outputs[0])[i] = p - rate * decay * p - rate * m_hat / (std::sqrt(v_hat) + epsilon);
    reals(call.outputs[1])[i] = m;
    reals(call.outputs[2])[i] = v;
  });
}

/// v = momentum v + g,  p = p - rate v,  where g = gradient * scale + decay * p (Sutskever et al. 2013,
/// "On the importance of initialization and momentum", section 2, with the rate outside the velocity).
/// Without momentum there is no velocity.   parameter, [velocity,] gradient[, scale []] -> parameter [, velocity]
void sgd(const KernelCall& call) {
  const double momentum = call.attributes.real("momentum");
  const double decay = call.attributes.real("decay");
  const double rate = call.scalars.learning_rate;
  const std::size_t gradient = momentum > 0 ? 2 : 1;
  const double scale = call.inputs.size() > gradient + 1 ? reals(call.inputs[gradient + 1])[0] : 1;
  for_each(call, call.inputs[0].elements(), 1, [&](std::int64_t i) {
    const double p = reals(call.inputs[0])[i];
    double v = reals(call.inputs[gradient])[i] * scale + decay * p;
    if (momentum > 0) {
      v += momentum * reals(call.inputs[1])[i];
      reals(call.outputs[1])[i] = v;
    }
    reals(call.outputs[0])[i] = p - rate * v;
  });
}

const RegisterKernel register_clip_scale("reference", "clip_scale", {.run = clip_scale});
const RegisterKernel register_adamw("reference", "adamw", {.run = adamw});
const RegisterKernel register_sgd("reference", "sgd", {.run = sgd});

}  // namespace
}  // namespace shardrun::device::reference
