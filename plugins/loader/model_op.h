#pragma once

#include <shardrun/model.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/graph/attributes.h"
#include "core/graph/tensor_type.h"
#include "plugins/loader/plugin.h"

namespace shardrun::plugins {

/// An op that a model brings, as the plugin declares it.
struct ModelOp {
  struct Operand {
    bool is_integer = false;
    double low = 0;  ///< the range from which checks draw elements; both 0: not given
    double high = 0;
  };

  std::string name;      ///< the name by which the model calls it
  std::string in_graph;  ///< the name of its op in graphs: "MODEL.NAME"
  std::string help;
  std::string rule;
  std::size_t min_operands = 0;
  std::vector<Operand> operands;  ///< as many as the rule has
  std::vector<std::optional<graph::DType>> results;
  std::vector<graph::AttributeSpec> attributes;
  graph::Attributes example;                  ///< the attributes of an example call
  std::map<std::string, std::int64_t> sizes;  ///< sizes of factors for checks
  sr_model_op raw{};
  Plugin plugin;
  std::string label;  ///< "op 'swish' of model 'mine' (/path)"
};

/// The ops of a model, as it declares them. Throws Error{plugin} naming the plugin and the op.
[[nodiscard]] std::vector<std::shared_ptr<const ModelOp>> read_ops(const Plugin& plugin, const sr_model& table);

/// Like read_ops(). In addition, the first call for a plugin's file registers the ops with core/graph and core/device,
/// for as long as the process runs; the ops keep that instance of the plugin open. Throws as read_ops does. REQUIRES:
/// no other thread uses ops.
[[nodiscard]] std::vector<std::shared_ptr<const ModelOp>> register_ops(const Plugin& plugin, const sr_model& table);

/// A kernel of an op that a model brings.
class OpKernel final : public device::AddedKernel {
 public:
  /// The type of real numbers that it reads and writes.
  enum class Reals : std::uint8_t { f32, f64 };

  OpKernel(std::shared_ptr<const ModelOp> op, Reals reals);

  /// Throws Error{plugin}, which names the op, if the kernel fails.
  void run(const device::KernelCall& call) const override;
  [[nodiscard]] std::size_t scratch_bytes(const graph::OpShape& shape) const override;
  /// Allocates the memory for the arguments of a call, so that the call itself allocates nothing.
  [[nodiscard]] std::shared_ptr<void> prepare(const graph::OpShape& shape) const override;

 private:
  std::shared_ptr<const ModelOp> op_;
  Reals reals_;
};

}  // namespace shardrun::plugins
