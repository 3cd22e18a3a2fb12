#include <shardrun/sdk/engine.hpp>
#include <shardrun/sdk/engine/math.hpp>

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
    z_ = einsum("bd,df->bf", x, w0_);  // f: the hidden / n columns of this device
    h_ = relu(z_);
    return all_reduce(einsum("bf,fo->bo", h_, w1_));
  }

  Arrays backward(const Array& grads) override {
    const Array w1_grad = einsum("bf,bo->fo", h_, grads);
    const Array dh = einsum("bo,fo->bf", grads, w1_);
    const Array dz = dh * (z_ > 0);
    return {{"layer_0/weights", einsum("bd,bf->df", x_, dz)}, {"layer_1/weights", w1_grad}};
  }

 private:
  std::int64_t hidden_;
  Array& w0_;
  Array& w1_;
  Array x_, z_, h_;
};

}  // namespace

SHARDRUN_EXPORT_ENGINE(TensorParallel, "tensor_parallel", "1.0")
