#include <shardrun/sdk/engine.hpp>
#include <shardrun/sdk/engine/math.hpp>

namespace {

using namespace shardrun::sdk;

class Brightness : public InferenceEngine<std::uint8_t> {
 public:
  static constexpr const char* help = "the mean of each color, of images of any size";

  explicit Brightness(EngineSetup& setup)
      : InferenceEngine(setup), scale_(parameter("scale", {3}, constant_values(1))) {
    set_sample<std::uint8_t>({-1, -1, 3});  // rows, columns, colors
  }

  void load_checkpoint(const Arrays& params) override { scale_ = params.at("scale"); }

  Array forward(const BasicArray<std::uint8_t>& x) override {
    return scale_ * einsum("brcl->bl", cast<float>(x)) / static_cast<float>(x.extent(1) * x.extent(2));
  }

 private:
  Array& scale_;
};

}  // namespace

SHARDRUN_EXPORT_ENGINE(Brightness, "brightness", "1.0")
