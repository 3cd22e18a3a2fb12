#pragma once

#include "core/job/job.h"
#include "plugins/loader/strategy.h"

namespace shardrun::task {

// Between the job file and the border of plugins: the same options in either's words.

/// Where this job's plugins are looked for.
[[nodiscard]] plugins::Directories directories_of(const std::vector<std::filesystem::path>& configured);

/// What the job file's schema asks models and strategies for.
[[nodiscard]] job::SchemaProviders schema_providers();

/// Throws Error{plugin}.
[[nodiscard]] plugins::Strategy open_strategy(const job::Job& job);

/// Ranks, mesh and option values of the job.
void add_job(plugins::StrategyRequest& request, const job::Job& job);

}  // namespace shardrun::task
