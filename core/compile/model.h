#pragma once

#include <string>

#include "core/workload/model.h"
#include "plugins/loader/model.h"

namespace shardrun::compile {

/// Wraps a plugin's model. Adds to the plugin's errors the place of the setting that they name.
[[nodiscard]] workload::Model model_of(plugins::Model plugin);

/// The models that are found in these folders.
[[nodiscard]] workload::Models models_in(plugins::Directories directories);

}  // namespace shardrun::compile
