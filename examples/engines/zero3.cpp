#include <shardrun/sdk/engine.hpp>
#include <shardrun/sdk/engine/math.hpp>

namespace {

using namespace shardrun::sdk;

/// The network relu(x · W0) · W1, data parallel with ZeRO-3: each device keeps some rows of each weight, gathers the
/// whole just before it computes with it, and gets its part of the sum of the gradients (Rajbhandari et al. 2020,
/// arXiv:1910.02054). The optimizer's states are then cut in the same way.
class Zero3 : public ShardedEngine {
 public:
  static constexpr const char* help = "two-layer ReLU network, data parallel with ZeRO-3";
  static std::vector<Option> options() {
    return {required(integer_option("hidden", 1, 1, 1 << 24, "width of the hidden layer"))};
  }

  explicit Zero3(EngineSetup& setup)
      : ShardedEngine(setup),
        hidden_(option_values().integer("hidden")),
        w0_(sharded_parameter("layer_0/weights", {features(), hidden_}, 0, he_values(features()))),
        w1_(sharded_parameter("layer_1/weights", {hidden_, outputs()}, 0, he_values(hidden_))) {}

  void load_checkpoint(const Arrays& params) override {
    w0_ = shard(params.at("layer_0/weights"), 0);
    w1_ = shard(params.at("layer_1/weights"), 0);
  }

  Array forward(const Array& x) override {
    x_ = x;
    z_ = einsum("bd,df->bf", x, all_gather(w0_, 0));
    h_ = relu(z_);
    return einsum("bf,fo->bo", h_, all_gather(w1_, 0));
  }

  Arrays backward(const Array& grads) override {
    const Array w1_grad = einsum("bf,bo->fo", h_, grads);
    const Array w1 = all_gather(w1_, 0);  // it was not kept since forward
    const Array dh = einsum("bo,fo->bf", grads, w1);
    const Array dz = dh * (z_ > 0);
    const Array w0_grad = einsum("bd,bf->df", x_, dz);
    return {{"layer_0/weights", reduce_scatter(w0_grad, 0)}, {"layer_1/weights", reduce_scatter(w1_grad, 0)}};
  }

 private:
  std::int64_t hidden_;
  Array& w0_;
  Array& w1_;
  Array x_, z_, h_;
};

}  // namespace

SHARDRUN_EXPORT_ENGINE(Zero3, "zero3", "1.0")
