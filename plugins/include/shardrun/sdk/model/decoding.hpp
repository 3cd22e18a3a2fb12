#pragma once

/// The function `decode` of a model: it adds tokens to sequences whose keys and values are in caches.
///
///     void declare(const ModelJob& job, States& states) const {
///       ...
///       if (job.caches.pages > 0) {
///         states.cache("layer.0/attention/keys", job.caches, {"heads", 4}, {"head_dim", 16}, 0);
///         states.cache("layer.0/attention/values", job.caches, {"heads", 4}, {"head_dim", 16}, 0);
///       }
///     }
///     Value decode(const ModelJob& job, Function& f) const {
///       const Decoding decoding(f, job.caches);
///       ... decoding.attend("layer.0/attention", q, k, v) ...
///     }

#include <shardrun/sdk/model/function.hpp>
#include <shardrun/sdk/model/math.hpp>

#include <string>

namespace shardrun::sdk {

/// The inputs of `decode`, and attention to what its caches hold.
class Decoding {
 public:
  Decoding(Function& f, const CacheSizes& sizes)
      : tokens_(f.input("inputs", Element::i32, {{"batch", f.rows()}, {"seq", f.length()}})),
        positions_(f.input("positions", Element::i32, {{"batch", f.rows()}, {"seq", f.length()}})),
        pages_(f.input("pages", Element::i32, {{"batch", f.rows()}, {"sequence_pages", sizes.of_sequence}})) {}

  /// The tokens that the call adds: i32 [batch, seq].
  [[nodiscard]] const Value& tokens() const noexcept { return tokens_; }
  /// The positions of the tokens in their sequences: i32 [batch, seq]; -1: there is no token.
  [[nodiscard]] const Value& positions() const noexcept { return positions_; }

  /// Adds keys and values to the caches NAME/keys and NAME/values. Returns causal attention of q to all that they hold,
  /// without dropout. q, result: [batch, seq, heads, head_dim]   k, v: [batch, seq, heads / group, head_dim]
  [[nodiscard]] Value attend(const std::string& name, const Value& q, const Value& k, const Value& v,
                             const Attention& how = {}) const {
    Function& f = q.function();
    const Value keys = add(f, name + "/keys", k);
    const Value values = add(f, name + "/values", v);
    return f.call(
        "paged_attention", {q, keys, values, pages_, positions_},
        {{"group", how.group == 0 ? std::int64_t{1} : how.group}, {"window", how.window}, {"scale", how.scale}});
  }

 private:
  [[nodiscard]] Value add(Function& f, const std::string& cache, const Value& x) const {
    const Value pages = f.call("write_pages", {f.state(cache), x, pages_, positions_});
    f.write(cache, pages);
    return pages;
  }

  Value tokens_;
  Value positions_;
  Value pages_;
};

}  // namespace shardrun::sdk
