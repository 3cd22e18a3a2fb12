#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/compile/compile.h"
#include "core/job/job.h"
#include "core/memory/machine.h"

namespace shardrun::run {

/// Throws Error{job} if the device does not store float32, the type in which results are written.
void require_device(const job::Job& job, const device::Device& device);

/// Makes this process compute on the unit of the job's device that belongs to its local rank. Throws Error{job} if
/// there is none, or if the device cannot be used on this machine. `local_ranks`: 0 if unknown.
void use_unit(const job::Job& job, const device::Device& device, std::int64_t local_rank, std::int64_t local_ranks);

/// Checks everything that must hold before a process starts or the output folder is touched. `ranks_here`: how many of
/// the job's ranks share this machine; 0 if unknown. `processes`: how many of them this process will start; the others
/// exist already. Throws Error{job}. Returns lines to show first: idle ranks, memory that is barely enough, and how
/// [cluster] memory differs from the need and from this machine.
std::vector<std::string> require_runnable(const job::Job& job, const compile::Compiled& compiled,
                                          std::int64_t ranks_here, std::int64_t processes);

/// Throws Error{job} unless the file [infer] from can be read.
void require_input(const job::Job& job);

/// Throws Error{job} if the run would touch files of others in its output folder, or if the file [infer] to cannot be
/// written. `replaces_file`: see RunSettings. Called on the first rank, which writes.
void require_outputs(const job::Job& job, bool replaces_file);

/// A line about a memory need that leaves less than 1/32 of the need free; "" if it leaves more.
/// `of_processes`: the part of the need that is not planned.
[[nodiscard]] std::string narrow_notice(std::uint64_t bytes, std::uint64_t of_processes,
                                        const memory::MemoryRoom& room);

/// The part of require_runnable() about the memory of the host and of units. Ranks call it if they learn only from each
/// other how many of them share a machine. Throws Error{job}.
void require_memory_here(const job::Job& job, const compile::Compiled& compiled, std::int64_t ranks_here);

/// Reads all of the job's data (Dataset::check), and its prompts, on all cores that this process may use, before the
/// output folder is touched. It is called once for all ranks that are started here; otherwise by the first rank of each
/// machine, or by every rank if the launcher does not give local ranks. Throws Error{data}.
void check_data(const job::Job& job, const compile::Compiled& compiled);

/// Prepares the job's data for training (Dataset::load), after check_data. Throws Error{io}.
void load_data(const compile::Compiled& compiled);

/// Checks that this process can start the ranks. Throws Error{job} if a transport needs another launcher, and
/// Error{usage} if the ranks cannot meet on this machine.
void require_launchable(const job::Job& job, const compile::Compiled& compiled);

}  // namespace shardrun::run
