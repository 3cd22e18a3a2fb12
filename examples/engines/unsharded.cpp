#include <shardrun/sdk/engine/eigen.hpp>
#include <shardrun/sdk/engine.hpp>

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
    x_ = x;                                     // for backward
    z_ = array_of(matrix(x) * matrix(w0_));     // [batch, features] · [features, hidden]
    h_ = array_of(matrix(z_).cwiseMax(0.0F));   // relu
    return array_of(matrix(h_) * matrix(w1_));  // [batch, hidden] · [hidden, outputs]
  }

  Arrays backward(const Array& grads) override {
    Arrays result;
    result["layer_1/weights"] = array_of(matrix(h_).transpose() * matrix(grads));
    const Array dh = array_of(matrix(grads) * matrix(w1_).transpose());
    const Array dz = array_of((matrix(z_).array() > 0).select(matrix(dh), 0.0F));
    result["layer_0/weights"] = array_of(matrix(x_).transpose() * matrix(dz));
    return result;
  }

 private:
  std::int64_t hidden_;
  Array& w0_;
  Array& w1_;
  Array x_, z_, h_;
};

}  // namespace

SHARDRUN_EXPORT_ENGINE(SingleDevice, "unsharded", "1.0")
