#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/compile/compile.h"
#include "core/compile/plugins.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/text_job.h"

namespace shardrun::test {

/// The job that a job file with this text in `folder` describes.
inline job::Job job_in(const TemporaryFolder& folder, std::string_view text,
                       const std::vector<std::string>& overrides = {}) {
  const std::string with_plugins = std::string(text) + "[plugins]\npath = " SHARDRUN_PLUGINS "\n";
  job::Job job =
      job::parse_job(job::read_job_text(with_plugins, folder / "job.ini", overrides), compile::schema_providers());
  job.output = folder / job.output.filename().string();  // otherwise it would be relative to the working folder
  job.output_given = (folder.path() / "").native().size();
  return job;
}

/// Compiles the job for a device and loads its data.
inline compile::Compiled compile_ready(const job::Job& job, std::string_view device = "cpu") {
  job::Job there = job;
  there.device = device;
  compile::Compiled compiled = compile::compile(there);
  if (compiled.dataset != nullptr) {
    compiled.dataset->load();
  }
  return compiled;
}

/// A job that trains a small transformer on a few sentences.
inline job::Job text_job_in(const TemporaryFolder& folder, const std::vector<std::string>& overrides = {}) {
  write_file(folder / "corpus.txt", sentences(4000));
  return job_in(folder, text_job, overrides);
}

}  // namespace shardrun::test
