#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/job/job.h"
#include "core/runtime/collectives.h"
#include "plugins/loader/strategy.h"
#include "plugins/loader/transport.h"

namespace shardrun::compile {

// The plugins of a job: found, opened, and given the options that the job file has for them.

/// Where this job's plugins are looked for.
[[nodiscard]] plugins::Directories directories_of(const std::vector<std::filesystem::path>& configured);

/// What the job file's schema asks models, strategies and this machine for.
[[nodiscard]] job::SchemaProviders schema_providers();

/// Throws Error{plugin}; Error{job} where it does not read a section [sharding] that the job has.
[[nodiscard]] plugins::Strategy open_strategy(const job::Job& job);

/// Ranks, mesh, option values and [sharding] of the job. Throws Error{job} where an option's file cannot be read.
void add_job(plugins::StrategyRequest& request, const job::Job& job, const plugins::Strategy& strategy);

/// The options of [strategy] whose values are files, with their places, as the beginning of a message: "job.ini:12:
/// [strategy] schedule = /jobs/mine.csv: ". Empty where there is none.
[[nodiscard]] std::string strategy_files(const job::Job& job);

/// The transports of the mesh's axes, configured, not opened yet. Throws Error{job} where [transport] names an axis
/// that the mesh does not have or that has one rank, a transport cannot move what the job has or refuses its options,
/// or an option's file cannot be read.
[[nodiscard]] runtime::TransportSet load_transports(const job::Job& job, const mesh::Mesh& mesh);

/// Where the job names a transport: for an axis of the mesh, or for all.
[[nodiscard]] std::string place_of_transport(const job::Job& job, const std::string& name);

/// One of the transports that the job names, configured by its options, not opened yet. Throws Error{plugin, job}.
[[nodiscard]] plugins::Transport load_transport(const job::Job& job, const std::string& name);

/// A transport without a job file, configured for so many ranks and not opened yet: with keys and values as one would
/// have them under [transport.NAME], the rest by default, as all of a transport that it opens in its turn. Throws
/// Error{job} for what the job file would be refused for.
[[nodiscard]] plugins::Transport load_transport(const plugins::Directories& directories, const std::string& name,
                                                const std::vector<std::pair<std::string, std::string>>& settings,
                                                std::uint32_t ranks);

}  // namespace shardrun::compile
