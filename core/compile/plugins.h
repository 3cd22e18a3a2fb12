#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/job/job.h"
#include "core/runtime/collectives.h"
#include "core/workload/model.h"
#include "plugins/loader/strategy.h"
#include "plugins/loader/transport.h"

namespace shardrun::compile {

// Finds and opens the plugins of a job, and gives them their options from the job file.

/// The folders to search for this job's plugins.
[[nodiscard]] plugins::Directories directories_of(const std::vector<std::filesystem::path>& configured);

/// The functions by which the job file's schema asks about models, strategies and this machine.
[[nodiscard]] job::SchemaProviders schema_providers();

/// Opens the job's model. Throws Error{plugin}, or Error{job} if it lacks an option that training on tokens needs.
[[nodiscard]] workload::Model open_model(const job::Job& job);

/// Opens the job's strategy. Throws Error{plugin}, or Error{job} if the job has a section [sharding] that the strategy
/// does not read.
[[nodiscard]] plugins::Strategy open_strategy(const job::Job& job);

/// Adds the job's ranks, mesh, option values and [sharding] to the request. Throws Error{job} if an option's file
/// cannot be read.
void add_job(plugins::StrategyRequest& request, const job::Job& job, const plugins::Strategy& strategy);

/// The options of [strategy] that name files, as the beginning of a message: "job.ini:12: [strategy] schedule =
/// /jobs/mine.csv: ". Empty if there are none.
[[nodiscard]] std::string strategy_files(const job::Job& job);

/// The transports of the mesh axes, configured but not opened. Throws Error{job} if [transport] names an axis that the
/// mesh lacks or that has one rank, if none suits `auto`, if one moves neither host memory nor the device's memory or
/// refuses its options, or if an option's file cannot be read.
[[nodiscard]] runtime::TransportSet load_transports(const job::Job& job, const mesh::Mesh& mesh,
                                                    const device::Device& device);

/// How many consecutive ranks share a machine: the run's number if it is known, else that of [cluster], else all ranks.
[[nodiscard]] std::int64_t ranks_per_machine(const job::Job& job);

/// The place in the job file that names a transport, for one mesh axis or for all.
[[nodiscard]] std::string place_of_transport(const job::Job& job, const std::string& name);

/// Whether the job sets the transport of any mesh axis to `auto`.
[[nodiscard]] bool chooses_transports(const job::Job& job);

/// A transport that the job names, configured but not opened. Throws Error{plugin, job}.
[[nodiscard]] plugins::Transport load_transport(const job::Job& job, const std::string& name);

/// A transport for tools without a job file, configured for `ranks` ranks but not opened. `settings`: keys and values
/// as under [transport.NAME]; other options have their defaults, and so have transports that it opens itself. Throws
/// Error{plugin}, or Error{job} if the transport refuses the settings.
[[nodiscard]] plugins::Transport load_transport(const plugins::Directories& directories, const std::string& name,
                                                const std::vector<std::pair<std::string, std::string>>& settings,
                                                std::uint32_t ranks);

}  // namespace shardrun::compile
