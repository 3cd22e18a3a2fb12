#include "core/models/loss.h"

namespace shardrun::models {

using graph::FunctionBuilder;
using graph::ValueId;

ValueId cross_entropy(FunctionBuilder& builder, ValueId logits, ValueId targets) {
  const ValueId highest = builder.call("row_max", {logits}, {}, "highest_logit");
  const std::vector<ValueId> terms = builder.call_all("softmax_terms", {logits, highest, targets}, {}, "softmax_terms");
  return builder.call("token_loss", {highest, terms[0], terms[1]}, {}, "losses");
}

}  // namespace shardrun::models
