#pragma once

#include <string>

#include "core/workload/model.h"
#include "plugins/loader/model.h"

namespace shardrun::compile {

/// A plugin as a model. Its errors get the place of the setting that they name.
[[nodiscard]] workload::Model model_of(plugins::Model plugin);

/// The models that the folders have.
[[nodiscard]] workload::Models models_in(plugins::Directories directories);

}  // namespace shardrun::compile
