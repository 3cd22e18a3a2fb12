#include <shardrun/sdk/model.hpp>

#include <string>
#include <vector>

namespace {

using namespace shardrun::sdk;

/// Llama's transformer (Touvron et al. 2023, arXiv:2302.13971, section 2.2), with grouped heads (Ainslie et al. 2023,
/// arXiv:2305.13245): `heads` query heads share `kv_heads` heads of keys and values.
class Llama {
 public:
  static constexpr const char* help = "Llama's architecture, trained on tokens";
  static constexpr std::uint32_t data = SR_DATA_TOKENS;

  static std::vector<Option> options() {
    return {integer_option("layers", 2, 1, 1024, "blocks"),
            integer_option("heads", 4, 1, 65536, "query heads"),
            integer_option("kv_heads", 2, 1, 65536, "heads of keys and values; divides heads"),
            integer_option("width", 64, 1, 262144, "columns of the residual stream"),
            integer_option("head_dim", 16, 2, 65536, "columns of a head; even"),
            integer_option("hidden", 172, 1, 1048576, "columns between the matrices of the second half of a block"),
            integer_option("context", 64, 1, 1048576, "tokens that a sequence has"),
            optional(integer_option("vocab", 1, 1, 2097152, "from the data where there is any")),
            number_option("theta", 10000, 1, 1e9, "base of the rotary embedding")};
  }

  void declare(const ModelJob& job, States& states) const {
    const Sizes s(job);
    const Dim embed{"embed", s.width};
    const Dim heads{"heads", s.kv_heads};
    const Dim group{"group", s.group};
    const Dim head_dim{"head_dim", s.head_dim};
    const Dim mlp{"mlp", s.hidden};
    const Initial weights = normal(0.02);
    states.set_layers(s.layers);
    states.parameter("embedding", {{"vocab", s.vocab}, embed}, weights, true);
    for (std::int64_t l = 0; l < s.layers; ++l) {
      const auto layer = static_cast<std::int32_t>(l);
      const std::string at = name_of(l);
      states.parameter(at + "attention_norm", {embed}, constant(1), false, layer);
      states.parameter(at + "q", {embed, heads, group, head_dim}, weights, true, layer);
      states.parameter(at + "k", {embed, heads, head_dim}, weights, true, layer);
      states.parameter(at + "v", {embed, heads, head_dim}, weights, true, layer);
      states.parameter(at + "o", {heads, group, head_dim, embed}, weights, true, layer);
      states.parameter(at + "mlp_norm", {embed}, constant(1), false, layer);
      states.parameter(at + "gate", {embed, mlp}, weights, true, layer);
      states.parameter(at + "up", {embed, mlp}, weights, true, layer);
      states.parameter(at + "down", {mlp, embed}, weights, true, layer);
    }
    states.parameter("norm", {embed}, constant(1));
    states.parameter("head", {embed, {"vocab", s.vocab}}, weights, true);
  }

  Value loss(const ModelJob& job, Function& f) const {
    const Value logits = forward(job, f);
    return cross_entropy(logits, f.input("targets", Element::i32, {{"batch", f.rows()}, {"seq", Sizes(job).context}}));
  }

  /// The logits of all positions.
  Value forward(const ModelJob& job, Function& f) const {
    const Sizes s(job);
    Value x =
        embedding(f.input("inputs", Element::i32, {{"batch", f.rows()}, {"seq", s.context}}), f.state("embedding"));
    for (std::int64_t l = 0; l < s.layers; ++l) {
      f.set_layer(l);
      x = x + attention(f, s, rms_norm(x, f.state(name_of(l) + "attention_norm"), epsilon), name_of(l));
      const Value y = rms_norm(x, f.state(name_of(l) + "mlp_norm"), epsilon);
      const Value gate = silu(einsum("bte,em->btm", y, f.state(name_of(l) + "gate")));
      const Value up = einsum("bte,em->btm", y, f.state(name_of(l) + "up"));
      x = x + einsum("btm,me->bte", gate * up, f.state(name_of(l) + "down"));
      f.cut_point(name_of(l) + "residual", x);
    }
    f.set_layer(s.layers);
    x = rms_norm(x, f.state("norm"), epsilon);
    return einsum("bte,ev->btv", x, f.state("head"));
  }

 private:
  static constexpr double epsilon = 1e-5;

  struct Sizes {
    explicit Sizes(const ModelJob& job)
        : layers(job.options.integer("layers")),
          kv_heads(job.options.integer("kv_heads")),
          group(job.options.integer("heads") / kv_heads),
          width(job.options.integer("width")),
          head_dim(job.options.integer("head_dim")),
          hidden(job.options.integer("hidden")),
          context(job.options.integer("context")),
          vocab(job.options.has("vocab") ? job.options.integer("vocab") : job.vocab),
          theta(job.options.number("theta")) {
      if (group * kv_heads != job.options.integer("heads")) {
        throw InvalidJob("[model] kv_heads does not divide heads", "model.kv_heads");
      }
      if (vocab == 0) {
        throw InvalidJob("[data] is missing; [model] vocab is enough for a plan", "data");
      }
    }
    std::int64_t layers, kv_heads, group, width, head_dim, hidden, context, vocab;
    double theta;
  };

  [[nodiscard]] static std::string name_of(std::int64_t layer) { return "layer." + std::to_string(layer) + "/"; }

  /// x: [batch, seq, embed]   result: as x
  [[nodiscard]] static Value attention(Function& f, const Sizes& s, const Value& x, const std::string& at) {
    const Rope how{.base = s.theta};
    const Value q = rope(einsum("bte,ehgd->bthgd", x, f.state(at + "q")), 1, how);
    const Value k = rope(einsum("bte,ehd->bthd", x, f.state(at + "k")), 1, how);
    const Value v = einsum("bte,ehd->bthd", x, f.state(at + "v"));
    return einsum("bthgd,hgde->bte", scaled_dot_product_attention(q, k, v), f.state(at + "o"));
  }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(Llama, "llama", "1.0")
