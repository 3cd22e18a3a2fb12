#include <shardrun/sdk/model.hpp>

#include <cmath>
#include <string>
#include <vector>

namespace {

using namespace shardrun::sdk;

/// ResNet-50 (He et al. 2015, arXiv:1512.03385, table 1), with the stride in the 3 x 3 convolution, as most programs
/// have it. Each block is a layer. Batch norm takes the statistics of the whole batch of a call.
class ResNet50 {
 public:
  static constexpr const char* help = "ResNet-50, trained on images with labels";
  static constexpr std::uint32_t data = SR_DATA_LABELS;

  static std::vector<Option> options() {
    return {integer_option("width", 64, 1, 1 << 12, "channels of the first stage"),
            integer_option("rows", 224, 1, 1 << 14, "of an image with 3 colors"),
            integer_option("columns", 224, 1, 1 << 14, "of an image"),
            integer_option("classes", 1000, 1, 1 << 20, "labels that there are")};
  }

  void declare(const ModelJob& job, States& states) const {
    const std::int64_t width = job.options.integer("width");
    const std::vector<Block> all = blocks(width);
    states.set_layers(static_cast<std::int64_t>(all.size()));
    declare_conv(states, "stem", 3, width, 7, -1);
    for (std::size_t b = 0; b < all.size(); ++b) {
      const Block& block = all[b];
      const auto layer = static_cast<std::int32_t>(b);
      declare_conv(states, block.name + "/reduce", block.in, block.width, 1, layer);
      declare_conv(states, block.name + "/middle", block.width, block.width, 3, layer);
      declare_conv(states, block.name + "/expand", block.width, 4 * block.width, 1, layer);
      if (block.projects) {
        declare_conv(states, block.name + "/project", block.in, 4 * block.width, 1, layer);
      }
    }
    const Dim classes{"classes", job.options.integer("classes")};
    states.parameter("head/weights", {{"channels", 32 * width}, classes}, normal(0.01), true);
    states.parameter("head/bias", {classes}, constant(0));
  }

  Value loss(const ModelJob& job, Function& f) const {
    const Value logits = forward(job, f);
    return cross_entropy(logits, f.input("targets", Element::i32, {{"batch", f.rows()}}));
  }

  Value forward(const ModelJob& job, Function& f) const {
    const Dim batch{"batch", f.rows()};
    const Dim rows{"rows", job.options.integer("rows")};
    const Dim columns{"columns", job.options.integer("columns")};
    const Value pixels = f.input("inputs", Element::f32, {batch, {"features", 3 * rows.size * columns.size}});

    Value x = reshape(pixels, {batch, {"colors", 3}, rows, columns});
    x = relu(conv_norm(f, x, "stem", {.strides = {2, 2}, .padding = {3, 3}}));
    x = max_pool(x, {3, 3}, {.strides = {2, 2}, .padding = {1, 1}});
    const std::vector<Block> all = blocks(job.options.integer("width"));
    for (std::size_t b = 0; b < all.size(); ++b) {
      const Block& block = all[b];
      f.set_layer(static_cast<std::int64_t>(b));
      Value y = relu(conv_norm(f, x, block.name + "/reduce"));
      y = relu(conv_norm(f, y, block.name + "/middle", {.strides = {block.stride, block.stride}, .padding = {1, 1}}));
      y = conv_norm(f, y, block.name + "/expand");
      x = relu(y + (block.projects ? conv_norm(f, x, block.name + "/project", {.strides = {block.stride, block.stride}})
                                   : x));
      f.cut_point(block.name + "/residual", x);
    }
    f.set_layer(static_cast<std::int64_t>(all.size()));
    return einsum("bc,ck->bk", mean(x, {2, 3}), f.state("head/weights")) + f.state("head/bias");
  }

 private:
  struct Block {
    std::string name;
    std::int64_t in, width, stride;
    bool projects;
  };

  [[nodiscard]] static std::vector<Block> blocks(std::int64_t width) {
    std::vector<Block> all;
    std::int64_t in = width;
    for (std::int64_t stage = 0; stage < 4; ++stage, width *= 2) {
      constexpr std::int64_t counts[] = {3, 4, 6, 3};
      for (std::int64_t b = 0; b < counts[stage]; ++b, in = 4 * width) {
        all.push_back({"layer." + std::to_string(all.size()), in, width, b == 0 && stage > 0 ? 2 : 1, b == 0});
      }
    }
    return all;
  }

  /// Draws the weights with a deviation for the number of values that a result reads (He et al. 2015, arXiv:1502.01852,
  /// section 2.2).
  static void declare_conv(States& states, const std::string& name, std::int64_t in, std::int64_t out,
                           std::int64_t size, std::int32_t layer) {
    const Dim channels{"channels", out};
    const Initial he = normal(std::sqrt(2.0 / static_cast<double>(in * size * size)));
    states.parameter(name + "/weights", {channels, {"in", in}, {"kernel_rows", size}, {"kernel_columns", size}}, he,
                     true, layer);
    states.parameter(name + "/gain", {channels}, constant(1), false, layer);
    states.parameter(name + "/bias", {channels}, constant(0), false, layer);
  }

  [[nodiscard]] static Value conv_norm(Function& f, const Value& x, const std::string& name,
                                       const Sliding& sliding = {}) {
    return batch_norm(conv(x, f.state(name + "/weights"), sliding), f.state(name + "/gain"), f.state(name + "/bias"));
  }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(ResNet50, "resnet50", "1.0")
