#pragma once

#include <string>

#include "core/workload/model.h"
#include "plugins/loader/model.h"

namespace shardrun::compile {

/// Makes a model of a plugin. Errors of the plugin get the place of the setting that they name.
[[nodiscard]] workload::Model model_of(plugins::Model plugin);

/// The models in these folders.
[[nodiscard]] workload::Models models_in(plugins::Directories directories);

}  // namespace shardrun::compile
