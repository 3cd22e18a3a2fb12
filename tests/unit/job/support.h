#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/job/job.h"
#include "tests/support/catch.h"
#include "tests/support/job_providers.h"

namespace shardrun::test {

inline job::Job parse(std::string_view text, const std::vector<std::string>& overrides = {},
                      const std::string& file = "toy.ini") {
  return job::parse_job(job::read_job_text(text, file, overrides), job_providers());
}

/// The message with which `action` is refused.
template <class Action>
std::string refusal(ErrorCode code, Action action) {
  try {
    (void)action();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.message();
  }
  FAIL("it was not refused");
  return {};
}

inline std::string refusal(std::string_view text, const std::vector<std::string>& overrides = {}) {
  return refusal(ErrorCode::job, [&] { return parse(text, overrides); });
}

/// The settings that every job for the toy model needs.
inline const std::string minimal = "[model]\nname = toy\nwidth = 8\n[train]\nsteps = 10\n";

}  // namespace shardrun::test
