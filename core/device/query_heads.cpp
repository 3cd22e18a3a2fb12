#include "core/device/query_heads.h"

namespace shardrun::device {

QueryHeads query_heads(const graph::Attributes& attributes, const TensorView& q, const TensorView& k) {
  if (!attributes.has("group")) {
    return {.count = q.shape[2] * q.shape[3],
            .group = q.shape[3],
            .of_first = q.origin[2] * q.global[3] + q.origin[3],
            .of_group = q.global[3]};
  }
  const std::int64_t group = attributes.integer("group");
  return {.count = q.shape[2],
          .group = group,
          .skipped = k.shape[2] > 0 ? q.origin[2] - k.origin[2] * group : 0,
          .of_first = k.origin[2] * group,
          .of_group = group};
}

}  // namespace shardrun::device
