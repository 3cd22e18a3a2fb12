#include <shardrun/sdk/model.hpp>

#include <string>
#include <vector>

namespace {

using namespace shardrun::sdk;

/// The squared distances of points x [b, t, d] from centres c [k, d].
struct SquaredDistances {
  static constexpr const char* name = "squared_distances";
  static constexpr const char* help = "the sum over d of (x[b, t, d] - c[k, d])^2";
  static constexpr const char* rule = "b t d, k d -> b t k; reduced d";

  template <class Real>
  static void kernel(const KernelCall<Real>& call) {
    const std::int64_t points = call.operand(0).size(0) * call.operand(0).size(1);
    const std::int64_t centres = call.operand(1).size(0);
    const std::int64_t dims = call.operand(1).size(1);
    const Real* const x = call.reals(0);
    const Real* const c = call.reals(1);
    Real* const y = call.results();
    call.split(points, 16, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) {
        for (std::int64_t k = 0; k < centres; ++k) {
          Real sum = 0;
          for (std::int64_t d = 0; d < dims; ++d) {
            const Real difference = x[p * dims + d] - c[k * dims + d];
            sum += difference * difference;
          }
          y[p * centres + k] = sum;
        }
      }
    });
  }

  /// dx = 2 sum over k of dy (x - c), and dc = 2 sum over b and t of dy (c - x).
  static Value gradient(Function& f, const GradientRequest& request) {
    const Value x = request.operands[0];
    const Value c = request.operands[1];
    const Value dy = request.result_gradients[0];
    const auto einsum = [&](const Value& a, const char* spec) { return f.call("einsum", {dy, a}, {{"spec", spec}}); };
    if (request.operand == 0) {
      return 2 * (einsum(x, "btk,btd->btd") - einsum(c, "btk,kd->btd"));
    }
    return 2 * (einsum(c, "btk,kd->kd") - einsum(x, "btk,btd->kd"));
  }
};

/// A bigram model: a network maps a token to a point. The nearer a token's vector is to it, the likelier it comes next.
class Nearest {
 public:
  static constexpr const char* help = "a bigram model, which finds the nearest vector";
  static constexpr std::uint32_t data = SR_DATA_TOKENS;

  static std::vector<Option> options() {
    return {integer_option("context", 16, 1, 1 << 20, "tokens of a sample"),
            integer_option("vocab", 64, 1, 1 << 24, "tokens that there are; from the data where there is any"),
            integer_option("width", 32, 1, 1 << 20, "dimensions of a vector")};
  }
  static auto ops() { return own_ops<SquaredDistances>(); }

  void declare(const ModelJob& job, States& states) const {
    const Dim vocab = {"vocab", job.vocab != 0 ? job.vocab : job.options.integer("vocab")};
    const Dim embed = {"embed", job.options.integer("width")};
    const Dim hidden = {"mlp", 4 * embed.size};
    states.set_layers(2);
    states.parameter("embedding/tokens", {vocab, embed}, normal(0.5), false, 0);
    states.parameter("up/weights", {embed, hidden}, normal(0.1), true, 0);
    states.parameter("down/weights", {hidden, embed}, normal(0.1), true, 1);
    states.parameter("nearest/vectors", {vocab, embed}, normal(0.5), false, 1);
  }

  Value loss(const ModelJob& job, Function& f) const {
    const Dims dims = {{"batch", f.rows()}, {"seq", job.options.integer("context")}};
    const Value tokens = f.input("inputs", Element::i32, dims);
    f.set_layer(0);
    const Value hidden = gelu(matmul(embedding(tokens, f.state("embedding/tokens")), f.state("up/weights")));
    f.set_layer(1);
    const Value points = matmul(hidden, f.state("down/weights"));
    const Value distances = f.call("squared_distances", {points, f.state("nearest/vectors")});
    f.set_layer(2);
    return cross_entropy((-distances).named("logits"), f.input("targets", Element::i32, dims));
  }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(Nearest, "nearest", "1.0")
