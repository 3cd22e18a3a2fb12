#include <shardrun/sdk/engine.hpp>
#include <shardrun/sdk/engine/math.hpp>

namespace {

using namespace shardrun::sdk;

/// The network relu(x · W0) · W1, data parallel, with an all_reduce of its own: a ring (Patarasuk and Yuan 2009).
class Ring : public ShardedEngine {
 public:
  static constexpr const char* help = "two-layer ReLU network, data parallel with a ring all_reduce of its own";
  static constexpr std::uint32_t flags = SR_ENGINE_MESSAGES;
  static std::vector<Option> options() {
    return {required(integer_option("hidden", 1, 1, 1 << 24, "width of the hidden layer"))};
  }

  explicit Ring(EngineSetup& setup)
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
    return {{"layer_0/weights", ring_all_reduce(w0_grad)}, {"layer_1/weights", ring_all_reduce(w1_grad)}};
  }

 private:
  /// Cuts the array into one part per device. In n - 1 steps each device gets the sum of one part, and in n - 1 more
  /// the sums of the others. Each sends 2 (n - 1) / n of the array's bytes.
  Array ring_all_reduce(Array sum) {
    Array flat = Array::over(sum.data(), {sum.size()});
    for (int step = 0; step < num_devices() - 1; ++step) {
      Array part = exchange(flat, device_id() - step);
      const Part to = part_at(flat, device_id() - step - 1);
      std::transform(part.begin(), part.end(), flat.begin() + to.begin, flat.begin() + to.begin, std::plus<>());
    }
    for (int step = 0; step < num_devices() - 1; ++step) {
      Array part = exchange(flat, device_id() + 1 - step);
      std::copy(part.begin(), part.end(), flat.begin() + part_at(flat, device_id() - step).begin);
    }
    return sum;
  }

  /// Sends a part to the next device, and returns the part before it, from the previous device.
  Array exchange(const Array& flat, int part) {
    const Array sent = flat.slice(0, part_at(flat, part));
    Array received({part_at(flat, part - 1).size});
    send_async(sent, received, (device_id() + 1) % num_devices()).wait();
    return received;
  }

  [[nodiscard]] Part part_at(const Array& flat, int part) const {
    return part_of(flat.size(), num_devices(), (part + 2 * num_devices()) % num_devices());
  }

  std::int64_t hidden_;
  Array& w0_;
  Array& w1_;
  Array x_, z_, h_;
};

}  // namespace

SHARDRUN_EXPORT_ENGINE(Ring, "ring", "1.0")
