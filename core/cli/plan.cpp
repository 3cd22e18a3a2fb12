#include "core/cli/plan.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/cli/dump.h"
#include "core/cli/options.h"
#include "core/compile/compile.h"
#include "core/report/document.h"
#include "core/run/requirements.h"
#include "core/screen/progress.h"

namespace shardrun::cli {
namespace {

/// The width of a plan that is not printed on a terminal.
constexpr std::size_t usual_plan_width = 190;

std::size_t screen_width() {
  const screen::ProgressSink screen = screen::descriptor_sink(STDOUT_FILENO, std::getenv("TERM"));
  return screen.is_terminal ? screen.width() : usual_plan_width;
}

/// Parses a list of ranks such as "0,5,8-11". Throws Error{usage}.
std::vector<std::int64_t> read_ranks(const std::string& text, std::int64_t ranks) {
  const auto refuse = [&]() {
    throw Error(ErrorCode::usage,
                fmt::format("--ranks: expected ranks from 0 to {}, such as 0,5,8-11; found '{}'", ranks - 1, text));
  };
  std::set<std::int64_t> all;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  const auto read = [&] {
    std::int64_t rank = -1;
    const auto [next, fault] = std::from_chars(at, end, rank);
    if (fault != std::errc() || rank < 0 || rank >= ranks) {
      refuse();
    }
    at = next;
    return rank;
  };
  while (true) {
    const std::int64_t first = read();
    std::int64_t last = first;
    if (at != end && *at == '-') {
      ++at;
      last = read();
    }
    if (last < first) {
      refuse();
    }
    for (std::int64_t rank = first; rank <= last; ++rank) {
      all.insert(rank);
    }
    if (at == end) {
      return {all.begin(), all.end()};
    }
    if (*at++ != ',') {
      refuse();
    }
  }
}

/// Throws Error{usage} if more than one of the options that select the output is given.
void require_one(const Parsed& parsed) {
  std::vector<std::string> given;
  for (const char* option : {"json", "dump", "ranks", "all", "html"}) {
    if (parsed.has(option)) {
      given.emplace_back(option);
    }
  }
  if (given.size() > 1) {
    throw Error(ErrorCode::usage,
                fmt::format("plan: --{} has no effect with --{}: give one of them", given[1], given[0]));
  }
}

/// The number of ranks per machine; all ranks of the job if the device has no units, or their number is unknown.
std::int64_t ranks_here(const job::Job& job, const device::Device& device) {
  try {
    return device.has_units() ? std::min(compile::ranks_of_machine(job), job.ranks) : job.ranks;
  } catch (const Error&) {
    return job.ranks;
  }
}

void write_html(const Parsed& parsed, const job::Job& job, const compile::Compiled& compiled) {
  boost::json::object run = {
      {"name", job.file}, {"status", "planned"}, {"summary", nullptr}, {"notes", boost::json::array()}};
  report::set_job(run, job::canonical_text(job));
  report::join(run, plan_document(job, compiled));
  write_report(parsed, *parsed.get("html"), fmt::format("plan of {}", job.file), {std::move(run)});
}

/// Prints the plan. The search for settings with which the job fits takes longest, so all else is printed first.
void print_plan(const Planned& planned, bool every_rank) {
  fmt::print("{}", printable_lines(plan_text(planned, screen_width(), every_rank)));
  if (planned.fit && !planned.fit->fits()) {
    fmt::print("\nit does not fit; planning it with other settings\n");
    std::fflush(stdout);
    fmt::print("{}", printable_lines(
                         forecast::to_string(forecast::find_fitting(planned.job, planned.compiled, planned.forecast))));
  }
}

void print_json(const Planned& planned) {
  std::optional<forecast::FitSearch> search;
  if (planned.fit && !planned.fit->fits()) {
    search = forecast::find_fitting(planned.job, planned.compiled, planned.forecast);
  }
  fmt::print("{}", plan_json(planned, search));
}

int plan(std::span<const std::string> words) {
  std::vector<OptionSyntax> options = {
      set_option(),
      {.name = "json", .help = "print JSON with all ranks"},
      {.name = "ranks", .value = "LIST", .help = "print details of these ranks, such as 0,5,8-11"},
      {.name = "all", .help = "print details of every rank; alike ranks share a block"},
      {.name = "html", .value = "FILE", .help = "write the plan as a page (HTML)"},
      needing("html", replace_option())};
  std::ranges::move(resume_options(), std::back_inserter(options));
  std::ranges::move(dump_options(), std::back_inserter(options));
  const Parsed parsed = parse("plan", with_resume_set(words), options, 1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  require_one(parsed);
  if (parsed.has("html")) {
    require_report_or_new(parsed, *parsed.get("html"));
  }
  const job::Job job = read_job(parsed);
  const std::vector<std::int64_t> ranks =
      parsed.has("ranks") ? read_ranks(*parsed.get("ranks"), job.ranks) : std::vector<std::int64_t>{};
  const bool is_dump = wants_dump(parsed, job);
  if (is_dump || !ranks.empty()) {
    compile::require_model(job, "plan by ranks, graph, plan or program");
  }
  compile::Compiled compiled = compile::compile(job);
  run::require_device(job, *compiled.device);
  run::require_input(job);
  if (parsed.has("html")) {
    write_html(parsed, job, compiled);
    return 0;
  }
  if (compiled.engine != nullptr) {
    const run::Beginning beginning = run::beginning_of(job, compiled);
    if (parsed.has("json")) {
      fmt::print("{}", engine_plan_json(job, compiled, beginning));
    } else {
      fmt::print("{}", printable_lines(fmt::format("{}\ndisk: {}\n{}", engine_plan_text(job, compiled),
                                                   forecast::to_string(forecast::disk_use(job, compiled)),
                                                   run::to_string(beginning))));
    }
    return 0;
  }
  if (is_dump) {
    dump(parsed, job, compiled);
    return 0;
  }
  Planned planned{.job = job,
                  .compiled = compiled,
                  .forecast = forecast::forecast(job, compiled),
                  .idle = {},
                  .without = {},
                  .fit = {},
                  .disk = forecast::disk_use(job, compiled),
                  .beginning = run::beginning_of(job, compiled),
                  .ranks_here = ranks_here(job, *compiled.device)};
  planned.idle = forecast::idle_ranks(job, compiled, planned.forecast);
  planned.without = forecast::ranks_without(compiled, planned.forecast, planned.idle);
  planned.fit = forecast::memory_fit(job, *compiled.device, planned.forecast);
  if (parsed.has("json")) {
    print_json(planned);
  } else if (!ranks.empty()) {
    fmt::print("{}", printable_lines(ranks_text(planned, ranks)));
  } else {
    print_plan(planned, parsed.has("all"));
  }
  return 0;
}

const RegisterCommand plan_command(
    {.name = "plan", .arguments = "JOB.ini", .help = "memory, traffic and work of a job, before it runs", .run = plan});

}  // namespace
}  // namespace shardrun::cli
