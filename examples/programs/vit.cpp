#include <shardrun/sdk/model.hpp>

#include <string>

namespace {

using namespace shardrun::sdk;

/// A vision transformer (Dosovitskiy et al. 2021, arXiv:2010.11929, section 3.1), without a class token: the classifier
/// reads the mean of the patches, as in section D.3.
class Vit {
 public:
  static constexpr const char* help = "a vision transformer, trained on images with labels";
  static constexpr std::uint32_t data = SR_DATA_LABELS;

  static std::vector<Option> options() {
    return {integer_option("rows", 8, 1, 1 << 14, "of an image"),
            integer_option("colors", 1, 1, 1 << 12, "of an image: its columns are what is left of its values"),
            integer_option("patch", 4, 1, 1 << 12, "rows and columns of a patch; divides those of the image"),
            integer_option("layers", 2, 1, 1024, "blocks"),
            integer_option("heads", 4, 1, 65536, "of attention; divides width"),
            integer_option("width", 32, 1, 262144, "columns of the residual stream"),
            integer_option("hidden", 64, 1, 1048576, "columns between the matrices of the second half of a block")};
  }

  void declare(const ModelJob& job, States& states) const {
    const Sizes s(job);
    const Dim embed{"embed", s.width};
    const Dim mlp{"mlp", s.hidden};
    const Initial weights = normal(0.05);
    states.set_layers(s.layers);
    states.parameter("patches", {s.colors, s.patch_rows, s.patch_columns, embed}, weights, true);
    states.parameter("positions", {{"seq", s.across * s.down}, embed}, weights);
    for (std::int64_t l = 0; l < s.layers; ++l) {
      const auto parameter = [&](const char* name, const Dims& dims, const Initial& initial, bool decay) {
        states.parameter(name_of(l) + name, dims, initial, decay, static_cast<std::int32_t>(l));
      };
      parameter("attention_norm", {embed}, constant(1), false);
      for (const char* const name : {"q", "k", "v"}) {
        parameter(name, {embed, s.heads, s.head_dim}, weights, true);
      }
      parameter("o", {s.heads, s.head_dim, embed}, weights, true);
      parameter("mlp_norm", {embed}, constant(1), false);
      parameter("up", {embed, mlp}, weights, true);
      parameter("down", {mlp, embed}, weights, true);
    }
    states.parameter("norm", {embed}, constant(1));
    states.parameter("head", {embed, {"classes", job.vocab}}, weights, true);
  }

  Value loss(const ModelJob& job, Function& f) const {
    const Value logits = forward(job, f);
    return cross_entropy(logits, f.input("targets", Element::i32, {{"batch", f.rows()}}));
  }

  Value forward(const ModelJob& job, Function& f) const {
    const Sizes s(job);
    const Dim batch{"batch", f.rows()};
    const Value pixels = f.input("inputs", Element::f32, {batch, {"features", job.features}});
    const Value patches =
        reshape(pixels, {batch, s.colors, {"down", s.down}, s.patch_rows, {"across", s.across}, s.patch_columns});
    Value x = einsum("bcrpsq,cpqe->brse", patches, f.state("patches"));
    x = reshape(x, {batch, {"seq", s.down * s.across}, {"embed", s.width}}) + f.state("positions");
    for (std::int64_t l = 0; l < s.layers; ++l) {
      f.set_layer(l);
      const auto state = [&](const char* name) { return f.state(name_of(l) + name); };
      const Value y = layer_norm(x, state("attention_norm"), epsilon);
      const Dims grouped{batch, {"seq", s.down * s.across}, s.heads, {"group", 1}, s.head_dim};
      const Value q = reshape(einsum("bte,ehd->bthd", y, state("q")), grouped);
      const Value k = einsum("bte,ehd->bthd", y, state("k"));
      const Value v = einsum("bte,ehd->bthd", y, state("v"));
      const Value mixed = scaled_dot_product_attention(q, k, v, {.causal = false});
      x = x + einsum("bthgd,hde->bte", mixed, state("o"));
      const Value up = einsum("bte,em->btm", layer_norm(x, state("mlp_norm"), epsilon), state("up"));
      x = x + einsum("btm,me->bte", gelu(up), state("down"));
      f.cut_point(name_of(l) + "residual", x);
    }
    f.set_layer(s.layers);
    x = layer_norm(x, f.state("norm"), epsilon);
    return einsum("be,ek->bk", mean(x, {1}), f.state("head"));
  }

 private:
  static constexpr double epsilon = 1e-6;

  struct Sizes {
    explicit Sizes(const ModelJob& job)
        : layers(job.options.integer("layers")),
          width(job.options.integer("width")),
          hidden(job.options.integer("hidden")),
          colors{"colors", job.options.integer("colors")},
          heads{"heads", job.options.integer("heads")},
          head_dim{"head_dim", width / heads.size} {
      const std::int64_t rows = job.options.integer("rows");
      const std::int64_t patch = job.options.integer("patch");
      const std::int64_t columns = job.features / colors.size / rows;
      if (job.features == 0) {
        throw InvalidJob("[data] is missing", "data");
      }
      if (colors.size * rows * columns != job.features || rows % patch != 0 || columns % patch != 0) {
        throw InvalidJob("[model] rows, colors and patch do not divide the values of a sample", "model.rows");
      }
      if (head_dim.size * heads.size != width) {
        throw InvalidJob("[model] heads does not divide width", "model.heads");
      }
      patch_rows.size = patch_columns.size = patch;
      down = rows / patch;
      across = columns / patch;
    }
    std::int64_t layers, width, hidden, down = 0, across = 0;  ///< `down`, `across`: rows and columns of patches
    Dim colors, heads, head_dim, patch_rows{"patch_rows", 0}, patch_columns{"patch_columns", 0};
  };

  [[nodiscard]] static std::string name_of(std::int64_t layer) { return "layer." + std::to_string(layer) + "/"; }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(Vit, "vit", "1.0")
