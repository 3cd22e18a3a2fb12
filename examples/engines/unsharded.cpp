#include <shardrun/sdk/engine.hpp>
#include <shardrun/sdk/engine/math.hpp>

namespace {

using namespace shardrun::sdk;

/// A network of two layers, relu(x · W0) · W1, on one device.
class SingleDevice : public ShardedEngine {
 public:
  static constexpr const char* help = "two-layer ReLU network on one device";
  static std::vector<Option> options() {
    return {required(integer_option("hidden", 1, 1, 1 << 24, "width of the hidden layer"))};
  }

  explicit SingleDevice(EngineSetup& setup)
      : ShardedEngine(setup),
        hidden_(option_values().integer("hidden")),
        w0_(parameter("layer_0/weights", {features(), hidden_}, he_values(features()))),
        w1_(parameter("layer_1/weights", {hidden_, outputs()}, he_values(hidden_))) {
    if (num_devices() != 1) {
      throw InvalidJob("it runs on one device: set [job] ranks = 1", "job.ranks");
    }
  }

  void load_checkpoint(const Arrays& params) override {
    w0_ = params.at("layer_0/weights");
    w1_ = params.at("layer_1/weights");
  }

  Array forward(const Array& x) override {
    x_ = x;                            // for backward
    z_ = einsum("bd,df->bf", x, w0_);  // [batch, features] · [features, hidden]
    h_ = relu(z_);
    return einsum("bf,fo->bo", h_, w1_);  // [batch, hidden] · [hidden, outputs]
  }

  Arrays backward(const Array& grads) override {
    const Array w1_grad = einsum("bf,bo->fo", h_, grads);
    const Array dh = einsum("bo,fo->bf", grads, w1_);
    const Array dz = dh * (z_ > 0);
    const Array w0_grad = einsum("bd,bf->df", x_, dz);
    return {{"layer_0/weights", w0_grad}, {"layer_1/weights", w1_grad}};
  }

 private:
  std::int64_t hidden_;
  Array& w0_;
  Array& w1_;
  Array x_, z_, h_;
};

}  // namespace

SHARDRUN_EXPORT_ENGINE(SingleDevice, "unsharded", "1.0")
