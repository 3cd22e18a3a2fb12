#include <shardrun/sdk/engine/eigen.hpp>
#include <shardrun/sdk/engine.hpp>

namespace {

using namespace shardrun::sdk;

/// The network relu(x · W0) · W1, tensor parallel: each device has some columns of W0 and the same rows of W1, so that
/// ReLU needs no communication. The devices' results add up (Shoeybi et al. 2019, arXiv:1909.08053, section 3).
class TensorParallel : public ShardedEngine {
 public:
  static constexpr const char* help = "two-layer ReLU network, columns then rows over the devices";
  static constexpr std::uint32_t flags = SR_ENGINE_WHOLE_BATCH;
  static std::vector<Option> options() {
    return {required(integer_option("hidden", 1, 1, 1 << 24, "width of the hidden layer"))};
  }

  explicit TensorParallel(EngineSetup& setup)
      : ShardedEngine(setup),
        hidden_(option_values().integer("hidden")),
        w0_(sharded_parameter("layer_0/weights", {features(), hidden_}, 1, he_values(features()))),
        w1_(sharded_parameter("layer_1/weights", {hidden_, outputs()}, 0, he_values(hidden_))) {}

  void load_checkpoint(const Arrays& params) override {
    w0_ = shard(params.at("layer_0/weights"), 1);
    w1_ = shard(params.at("layer_1/weights"), 0);
  }

  Array forward(const Array& x) override {
    x_ = x;
    z_ = array_of(matrix(x) * matrix(w0_));  // [batch, features] · [features, hidden / n]
    h_ = array_of(matrix(z_).cwiseMax(0.0F));
    return all_reduce(array_of(matrix(h_) * matrix(w1_)));  // [batch, hidden / n] · [hidden / n, outputs]
  }

  Arrays backward(const Array& grads) override {
    const Array w1_grad = array_of(matrix(h_).transpose() * matrix(grads));
    const Array dh = array_of(matrix(grads) * matrix(w1_).transpose());
    const Array dz = array_of((matrix(z_).array() > 0).select(matrix(dh), 0.0F));
    return {{"layer_0/weights", array_of(matrix(x_).transpose() * matrix(dz))}, {"layer_1/weights", w1_grad}};
  }

 private:
  std::int64_t hidden_;
  Array& w0_;
  Array& w1_;
  Array x_, z_, h_;
};

}  // namespace

SHARDRUN_EXPORT_ENGINE(TensorParallel, "tensor_parallel", "1.0")
