#include "core/graph/op.h"

#include <fmt/format.h>

#include <map>

#include "core/base/error.h"

namespace shardrun::graph {
namespace {

std::map<std::string, Op, std::less<>>& registry() {
  static std::map<std::string, Op, std::less<>> ops;
  return ops;
}

}  // namespace

RegisterOp::RegisterOp(Op op) { add_op(std::move(op)); }

void add_op(Op op) {
  std::string name = op.name;
  registry().emplace(std::move(name), std::move(op));
}

const Op& find_op(std::string_view name) {
  const auto found = registry().find(name);
  if (found == registry().end()) {
    throw Error(ErrorCode::internal, fmt::format("no op is called '{}'", name));
  }
  return found->second;
}

const Op* find_op_of(std::string_view model, std::string_view name) {
  const auto found = registry().find(fmt::format("{}.{}", model, name));
  return found == registry().end() ? nullptr : &found->second;
}

std::vector<const Op*> all_ops(std::string_view model) {
  std::vector<const Op*> ops;
  for (const auto& [name, op] : registry()) {
    if (op.of_model == model) {
      ops.push_back(&op);
    }
  }
  return ops;
}

std::int64_t flops(const Op& op, const OpShape& shape) {
  if (op.flops != nullptr) {
    return op.flops(shape);
  }
  std::int64_t count = 0;
  for (const TensorType& type : shape.outputs) {
    count += element_count(type);
  }
  return count;
}

}  // namespace shardrun::graph
