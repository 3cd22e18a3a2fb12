#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "plugins/loader/plugin.h"

namespace shardrun::conformance {

/// What one case says of a transport.
struct Finding {
  std::string name;     ///< of the case
  std::string problem;  ///< of every rank that had one; empty: the transport behaves
};

/// Which cases to run: those whose name has one of these words in it; all where there are none.
using CaseWords = std::vector<std::string>;

/// Runs the cases over the transport, in processes of their own that are all gone when it returns, and reports each
/// as soon as it is known. A crash or a hang is a problem of the case that it happened in; the others are run all the
/// same.
///
/// `rank_command` starts this program so that it calls run_rank with the words that are added to it.
/// Throws Error{io} where processes cannot be started.
std::vector<Finding> check_transport(const plugins::Directories& directories, const std::string& name,
                                     const std::vector<std::string>& rank_command, const CaseWords& words = {},
                                     const std::function<void(const Finding&)>& report = {});

/// One rank of the above. Returns the process's exit code.
[[nodiscard]] int run_rank(std::span<const std::string> words);

}  // namespace shardrun::conformance
