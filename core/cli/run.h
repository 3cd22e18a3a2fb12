#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/cli/options.h"

namespace shardrun::cli {

/// The options of every command that runs a job.
[[nodiscard]] std::vector<OptionSyntax> run_options();

/// Runs a job whose results are read by the command itself: on this machine, with progress on standard error. Prints
/// only why it failed. Returns the exit code.
int run_quietly(const std::string& command, std::span<const std::string> words, job::Job job);

/// Runs a job and prints its results. `command` and `words`: the command line, for the summary. Returns the exit code.
int run_job(const std::string& command, std::span<const std::string> words, const Parsed& parsed, job::Job job);

}  // namespace shardrun::cli
