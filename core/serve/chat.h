#pragma once

#include <string>
#include <vector>

#include "core/infer/prompts.h"

namespace shardrun::serve {

/// Talks with a person, or a program: answers each line of standard input on standard output. /reset begins a new
/// conversation, and /exit or the end of the input ends. SIGINT ends the answer that is being written. `job`: the words
/// with which this program runs a job with [infer] events. `language`: of its model; it has a chat template. `system`:
/// what the model is told before; "": nothing. Returns the exit code.
int chat(const std::vector<std::string>& job, const infer::Language& language, const std::string& system);

}  // namespace shardrun::serve
