#pragma once

#include <string_view>

#include "core/graph/graph.h"
#include "plugins/loader/model.h"

namespace shardrun::plugins {

/// Throws Error{plugin} if the inputs and outputs of a function with this name are not those of shardrun/model.h:
/// `loss` has the inputs of the data, `iterate` none, `predict` a sequence and its logits. `kinds`: SR_DATA_... bits,
/// one of which it has to fit; 0: it takes no data.
void check_ports(const graph::Function& function, std::string_view name, std::uint32_t kinds,
                 const ModelRequest& request, std::int64_t rows);

}  // namespace shardrun::plugins
