#include <shardrun/sdk/engine.hpp>
#include <shardrun/sdk/engine/math.hpp>

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
    std::vector<Array> z, h, y;
    for_chunks([&](Part rows) {
      if (w0_ != nullptr) {
        z.push_back(einsum("bd,df->bf", x.slice(0, rows), *w0_));
        h.push_back(relu(z.back()));
        pass_on(h.back(), last_);
      } else if (w1_ != nullptr) {
        h.push_back(receive(0));
      }
      if (w1_ != nullptr) {
        y.push_back(einsum("bf,fo->bo", h.back(), *w1_));
      }
    });
    z_ = joined(z);
    h_ = joined(h);
    wait_for_sends();
    return joined(y);
  }

  Arrays backward(const Array& grads) override {
    std::vector<Array> chunks;
    for_chunks([&](Part rows) {
      if (w1_ != nullptr) {
        chunks.push_back(einsum("bo,fo->bf", grads.slice(0, rows), *w1_));
        pass_on(chunks.back(), 0);
      } else if (w0_ != nullptr) {
        chunks.push_back(receive(last_));
      }
    });
    Arrays result;
    if (w1_ != nullptr) {
      result["layer_1/weights"] = einsum("bf,bo->fo", h_, grads);
    }
    if (w0_ != nullptr) {
      result["layer_0/weights"] = einsum("bd,bf->df", x_, joined(chunks) * (z_ > 0));
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

  /// A device without the layer has no chunks.
  [[nodiscard]] static Array joined(const std::vector<Array>& chunks) {
    return chunks.empty() ? Array() : concatenate(chunks);
  }

  /// Sends a chunk to the other layer's device, if that is not this one.
  void pass_on(const Array& chunk, int device) {
    if (device != device_id()) {
      sent_.push_back(chunk);
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
