// An engine: a program that each rank runs for itself. It holds this rank's part of the parameters, computes on arrays,
// and calls collectives. The host reads the data, computes the loss, and runs the optimizer.

#include <shardrun/sdk/engine.hpp>

using namespace shardrun::sdk;

namespace {

/// One linear layer, y = x · w. Each rank has all of w and its part of the batch.
class Mine : public ShardedEngine {
 public:
  static constexpr const char* help = "one linear layer, data parallel";

  /// The options of [engine] in the job file. The host parses, checks and documents them.
  static std::vector<Option> options() { return {number_option("deviation", 0.1, 0, 1, "of the first weights")}; }

  /// Declares the parameters, and computes nothing: the host also runs this to learn what other ranks declare.
  explicit Mine(EngineSetup& setup)
      : ShardedEngine(setup),
        w_(parameter("w", {features(), outputs()}, normal_values(option_values().number("deviation")))) {}

  /// Takes the tensors of [job] checkpoint, each as a whole. Assigning copies values.
  void load_checkpoint(const Arrays& params) override { w_ = params.at("w"); }

  /// Computes predictions [samples, outputs] from this rank's samples [samples, features]. A rank may have no samples.
  Array forward(const Array& x) override {
    x_ = x;
    Array y({x.extent(0), outputs()});
    for (std::int64_t s = 0; s < x.extent(0); ++s) {
      for (std::int64_t f = 0; f < features(); ++f) {
        for (std::int64_t o = 0; o < outputs(); ++o) {
          y[s * outputs() + o] += x[s * features() + f] * w_[f * outputs() + o];
        }
      }
    }
    return y;
  }

  /// Computes the gradients of the parameters. `grads`: the gradient of the loss with respect to what forward returned.
  /// The loss is over the samples of all ranks, so the gradients are summed over the ranks.
  Arrays backward(const Array& grads) override {
    Array dw(w_.shape());
    for (std::int64_t s = 0; s < x_.extent(0); ++s) {
      for (std::int64_t f = 0; f < features(); ++f) {
        for (std::int64_t o = 0; o < outputs(); ++o) {
          dw[f * outputs() + o] += x_[s * features() + f] * grads[s * outputs() + o];
        }
      }
    }
    return {{"w", all_reduce(dw)}};
  }

 private:
  Array& w_;
  Array x_;
};

}  // namespace

SHARDRUN_EXPORT_ENGINE(Mine, "mine", "1.0")
