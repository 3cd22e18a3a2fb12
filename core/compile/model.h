#pragma once

#include <string>

#include "core/models/model.h"
#include "plugins/loader/model.h"

namespace shardrun::compile {

/// A plugin as a model. What it refuses is refused at the place of the setting that it names.
[[nodiscard]] models::Model model_of(plugins::Model plugin);

/// The models that the folders have.
[[nodiscard]] models::Models models_in(plugins::Directories directories);

}  // namespace shardrun::compile
