#include <shardrun/sdk/engine.hpp>
#include <shardrun/sdk/engine/math.hpp>

namespace {

using namespace shardrun::sdk;

/// The network relu(x · W0) · W1, data parallel: each device has all weights and a part of the batch. It adds up the
/// gradients of the devices.
class DataParallel : public ShardedEngine {
 public:
  static constexpr const char* help = "two-layer ReLU network, data parallel";
  static std::vector<Option> options() {
    return {required(integer_option("hidden", 1, 1, 1 << 24, "width of the hidden layer"))};
  }

  explicit DataParallel(EngineSetup& setup)
      : ShardedEngine(setup),
        hidden_(option_values().integer("hidden")),
        w0_(parameter("layer_0/weights", {features(), hidden_}, he_values(features()))),
        w1_(parameter("layer_1/weights", {hidden_, outputs()}, he_values(hidden_))) {}

  void load_checkpoint(const Arrays& params) override {
    w0_ = params.at("layer_0/weights");
    w1_ = params.at("layer_1/weights");
  }

  Array forward(const Array& x) override {
    x_ = x;
    z_ = einsum("bd,df->bf", x, w0_);
    h_ = relu(z_);
    return einsum("bf,fo->bo", h_, w1_);
  }

  Arrays backward(const Array& grads) override {
    const Array w1_grad = einsum("bf,bo->fo", h_, grads);
    const Array dh = einsum("bo,fo->bf", grads, w1_);
    const Array dz = dh * (z_ > 0);
    const Array w0_grad = einsum("bd,bf->df", x_, dz);
    return {{"layer_0/weights", all_reduce(w0_grad)}, {"layer_1/weights", all_reduce(w1_grad)}};
  }

 private:
  std::int64_t hidden_;
  Array& w0_;
  Array& w1_;
  Array x_, z_, h_;
};

}  // namespace

SHARDRUN_EXPORT_ENGINE(DataParallel, "data_parallel", "1.0")
