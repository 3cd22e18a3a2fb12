#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/infer/prompts.h"

namespace shardrun::serve {

struct ServerSettings {
  std::string name;              ///< the model's name
  std::vector<std::string> job;  ///< words with which this program runs a job with [infer] events
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;               ///< 0: any free one
  std::filesystem::path socket = {};       ///< a Unix socket in place of host and port
  std::string token = {};                  ///< the token that clients must send; empty: none
  bool is_open = false;                    ///< whether other hosts are served without a token
  std::filesystem::path certificate = {};  ///< the certificate for TLS; empty: no TLS
  std::filesystem::path key = {};
  std::size_t queue = 64;             ///< the most prompts that wait
  std::chrono::seconds timeout{600};  ///< the longest time for a whole answer
  std::chrono::seconds drain{30};     ///< time from a signal to stop until answers in work are given up
  std::size_t most_body_bytes = std::size_t{4} << 20U;
  /// Called with a line for each request, and about the job. `is_access`: the line is about a request.
  std::function<void(std::string_view line, bool is_access)> log;
  /// Called once the server listens. `address`: such as "http://127.0.0.1:8080".
  std::function<void(const std::string& address)> listens;
};

/// Serves answers of a job over HTTP, with OpenAI's interface, until SIGINT or SIGTERM asks it to stop or its job
/// cannot be started. Returns the exit code: 0 if it was asked to stop and all answers in work were given. A second
/// signal ends it at once. `language`: that of the job's model. Throws Error{usage} if it cannot listen or use TLS.
int serve(const ServerSettings& settings, const infer::Language& language);

/// Answers each line of standard input on standard output, for a person or a program. /reset begins a new conversation;
/// /exit or the end of input ends. SIGINT ends the answer that is being written. `job`: the words with which this
/// program runs a job with [infer] events. `language`: that of its model. `system`: the system message; "": none.
/// Returns the exit code. REQUIRES: language.has_chat(). Throws Error{aborted} if the job ends before it is ready.
int chat(const std::vector<std::string>& job, const infer::Language& language, const std::string& system);

/// page.html, the page on which a person talks with the model.
extern const std::string_view page;

}  // namespace shardrun::serve
