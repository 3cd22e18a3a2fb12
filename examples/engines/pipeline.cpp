#include <shardrun/sdk/engine/eigen.hpp>
#include <shardrun/sdk/engine.hpp>

namespace {

using namespace shardrun::sdk;

/// The network relu(x · W0) · W1, pipelined: device 0 has the first layer and device 1 the second. Further devices have
/// none. The batch goes through in chunks: device 0 computes the next one while it sends one (GPipe, arXiv:1811.06965).
class Pipeline : public ShardedEngine {
 public:
  static constexpr const char* help = "two-layer ReLU network, a layer on each of two devices";
  static constexpr std::uint32_t flags = SR_ENGINE_WHOLE_BATCH | SR_ENGINE_MESSAGES;
  static std::vector<Option> options() {
    return {required(integer_option("hidden", 1, 1, 1 << 24, "width of the hidden layer")),
            integer_option("chunks", 4, 1, 1024, "parts of a batch that follow each other")};
  }

  explicit Pipeline(EngineSetup& setup)
      : ShardedEngine(setup),
        hidden_(option_values().integer("hidden")),
        chunks_(option_values().integer("chunks")),
        last_(num_devices() > 1 ? 1 : 0) {
    if (device_id() == 0) {
      w0_ = &parameter("layer_0/weights", {features(), hidden_}, he_values(features()));
    }
    if (device_id() == last_) {
      w1_ = &parameter("layer_1/weights", {hidden_, outputs()}, he_values(hidden_));
    }
  }

  void load_checkpoint(const Arrays& params) override {
    if (w0_ != nullptr) {
      *w0_ = params.at("layer_0/weights");
    }
    if (w1_ != nullptr) {
      *w1_ = params.at("layer_1/weights");
    }
  }

  Array forward(const Array& x) override {
    x_ = x;
    z_ = Array({x.extent(0), hidden_});
    h_ = Array({x.extent(0), hidden_});
    Array result(w1_ != nullptr ? Shape{x.extent(0), outputs()} : Shape{0});
    for_chunks([&](Part rows) {
      if (w0_ != nullptr) {
        rows_of(z_, rows) = rows_of(x_, rows) * matrix(*w0_);
        rows_of(h_, rows) = rows_of(z_, rows).cwiseMax(0.0F);
        pass_on(h_, rows, last_);
      } else if (w1_ != nullptr) {
        rows_of(h_, rows) = matrix(receive(0));
      }
      if (w1_ != nullptr) {
        rows_of(result, rows) = rows_of(h_, rows) * matrix(*w1_);
      }
    });
    wait_for_sends();
    return result;
  }

  Arrays backward(const Array& grads) override {
    Arrays result;
    Array dh({x_.extent(0), hidden_});
    for_chunks([&](Part rows) {
      if (w1_ != nullptr) {
        rows_of(dh, rows) = rows_of(grads, rows) * matrix(*w1_).transpose();
        pass_on(dh, rows, 0);
      } else if (w0_ != nullptr) {
        rows_of(dh, rows) = matrix(receive(last_));
      }
    });
    if (w1_ != nullptr) {
      result["layer_1/weights"] = array_of(matrix(h_).transpose() * matrix(grads));
    }
    if (w0_ != nullptr) {
      const Array dz = array_of((matrix(z_).array() > 0).select(matrix(dh), 0.0F));
      result["layer_0/weights"] = array_of(matrix(x_).transpose() * matrix(dz));
    }
    wait_for_sends();
    return result;
  }

 private:
  template <class Act>
  void for_chunks(Act act) const {
    for (std::int64_t chunk = 0; chunk < chunks_; ++chunk) {
      act(part_of(x_.extent(0), chunks_, chunk));
    }
  }

  /// Sends rows to the other layer's device, if that is not this one.
  void pass_on(const Array& array, Part rows, int device) {
    if (device != device_id()) {
      sent_.push_back(array.slice(0, rows));
      sends_.push_back(send_async(sent_.back(), device));
    }
  }

  void wait_for_sends() {
    for (Future& send : sends_) {
      send.wait();
    }
    sends_.clear();
    sent_.clear();
  }

  std::int64_t hidden_, chunks_;
  int last_;  ///< the device with the second layer
  Array* w0_ = nullptr;
  Array* w1_ = nullptr;
  Array x_, z_, h_;
  std::list<Array> sent_;
  std::vector<Future> sends_;
};

}  // namespace

SHARDRUN_EXPORT_ENGINE(Pipeline, "pipeline", "1.0")
