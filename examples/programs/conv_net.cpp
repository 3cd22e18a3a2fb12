#include <shardrun/sdk/model.hpp>

namespace {

using namespace shardrun::sdk;

/// A small convolutional network: two convolutions with batch norm, then a linear layer on the mean of each channel.
class ConvNet {
 public:
  static constexpr const char* help = "a small convolutional network, trained on images with labels";
  static constexpr std::uint32_t data = SR_DATA_LABELS;

  static std::vector<Option> options() {
    return {integer_option("rows", 28, 1, 1 << 14, "of an image"), integer_option("channels", 16, 1, 1 << 12, "hidden"),
            integer_option("colors", 1, 1, 1 << 12, "of an image: its columns are what is left of its values")};
  }

  void declare(const ModelJob& job, States& states) const {
    const Dim colors{"colors", job.options.integer("colors")};
    if (job.features % (colors.size * job.options.integer("rows")) != 0) {
      throw InvalidJob("[model] rows times colors does not divide the values of a sample", "model.rows");
    }
    const Dim first{"first", job.options.integer("channels")};
    const Dim second{"second", 2 * first.size};
    const auto layer = [&](const std::string& name, const Dim& in, const Dim& out) {
      states.parameter(name + "/weights", {out, in, {"kernel_rows", 3}, {"kernel_columns", 3}}, normal(0.2), true);
      states.parameter(name + "/gain", {out}, constant(1));
      states.parameter(name + "/bias", {out}, constant(0));
    };
    layer("conv1", colors, first);
    layer("conv2", first, second);
    states.parameter("head", {second, {"classes", job.vocab}}, normal(0.1), true);
  }

  Value loss(const ModelJob& job, Function& f) const {
    const Value logits = forward(job, f);
    return cross_entropy(logits, f.input("targets", Element::i32, {{"batch", f.rows()}}));
  }

  Value forward(const ModelJob& job, Function& f) const {
    const Dim batch{"batch", f.rows()};
    const Dim colors{"colors", job.options.integer("colors")};
    const Dim rows{"rows", job.options.integer("rows")};
    const Value pixels = f.input("inputs", Element::f32, {batch, {"features", job.features}});
    const auto layer = [&](const Value& x, const std::string& name, const Sliding& sliding) {
      const Value y = conv(x, f.state(name + "/weights"), sliding);
      return relu(batch_norm(y, f.state(name + "/gain"), f.state(name + "/bias")));
    };

    Value x = reshape(pixels, {batch, colors, rows, {"columns", job.features / colors.size / rows.size}});
    x = layer(x, "conv1", {.padding = {1, 1}});
    x = max_pool(x, {3, 3}, {.strides = {2, 2}, .padding = {1, 1}});
    x = layer(x, "conv2", {.padding = {1, 1}});
    return einsum("bc,ck->bk", mean(x, {2, 3}), f.state("head"));
  }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(ConvNet, "conv_net", "1.0")
