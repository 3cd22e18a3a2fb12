#include <fmt/format.h>

#include <array>
#include <boost/asio/ip/address.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <future>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/endpoint.h"
#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/stop.h"
#include "core/base/text.h"
#include "core/cli/plan.h"
#include "core/cli/process.h"
#include "core/compile/compile.h"
#include "core/compile/plugins.h"
#include "core/files/atomic_file.h"
#include "core/files/folder.h"
#include "core/http/page_server.h"
#include "core/metrics/locked_run_folder.h"
#include "core/metrics/run_files.h"
#include "core/report/document.h"

namespace shardrun::cli {
namespace {

/// The files of a run from which its report is made.
std::vector<std::filesystem::path> files_of(const std::filesystem::path& folder) {
  return {metrics::job_path(folder), metrics::metrics_path(folder), metrics::summary_path(folder),
          metrics::trace_path(folder), metrics::ranks_path(folder)};
}

/// One of the runs of a report.
class ReportedRun {
 public:
  explicit ReportedRun(std::string name) : name_(std::move(name)), folder_(name_), reader_(folder_, name_) {}

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }

  /// Reads the folder. The trace is read again only if it has changed, and the plan made again only if the job has.
  [[nodiscard]] boost::json::object document() {
    boost::json::object run = reader_.document();
    if (const boost::json::object* const job = run["job"].if_object()) {
      if (const boost::json::string& text = job->at("text").as_string(); planned_ != text) {
        planned_ = text;
        plan_ = plan();
      }
      report::join(run, plan_);
    }
    const std::filesystem::path file = metrics::trace_path(folder_);
    if (std::string stamp = stamp_of(file); stamp != traced_) {
      traced_ = std::move(stamp);
      trace_ = report::trace_document(folder_);
    }
    report::join(run, trace_);
    return run;
  }

  /// A text that changes whenever the document can have changed.
  [[nodiscard]] std::string stamp() const {
    std::error_code none;
    const bool has_ended = std::filesystem::exists(metrics::summary_path(folder_), none);
    std::string stamp = !has_ended && metrics::is_held(folder_) ? "held" : "";
    std::vector<std::filesystem::path> parts = files_of(folder_);
    parts.insert(parts.end(), {metrics::pictures_path(folder_), metrics::attempts_path(folder_)});
    for (const std::filesystem::path& part : parts) {
      stamp += stamp_of(part);
    }
    return stamp;
  }

 private:
  [[nodiscard]] static std::string stamp_of(const std::filesystem::path& path) {
    std::error_code none;
    return fmt::format(" {} {}", std::filesystem::last_write_time(path, none).time_since_epoch().count(),
                       std::filesystem::is_regular_file(path, none) ? std::filesystem::file_size(path, none) : 0);
  }

  /// The plan of the job that was run. It has only a note if the job no longer compiles, as when a plugin is gone.
  [[nodiscard]] boost::json::object plan() const {
    try {
      const job::Job job = job::parse_job(job::read_job_file(metrics::job_path(folder_)), compile::schema_providers());
      boost::json::object plan = plan_document(job, compile::compile(job));
      if (job.cluster.memory == 0) {  // the limit is then that of this machine, which can be another than the run's
        for (boost::json::value& rank : plan["ranks"].as_array()) {
          rank.as_object().erase("memory_limit");
        }
      }
      return plan;
    } catch (const Error& error) {
      boost::json::object none;
      report::add_note(none, fmt::format("the plan is left out: {}", error.message()));
      return none;
    }
  }

  std::string name_;
  std::filesystem::path folder_;
  report::RunReader reader_;
  std::string planned_;  ///< the text of the job of `plan_`
  boost::json::object plan_;
  std::string traced_;  ///< the stamp of the file of `trace_`
  boost::json::object trace_;
};

class Report {
 public:
  explicit Report(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      runs_.emplace_back(name);
    }
  }

  [[nodiscard]] std::string title() const {
    return runs_.size() == 1 ? runs_.front().name() : counted(std::ssize(runs_), "run");
  }

  [[nodiscard]] boost::json::array documents() {
    boost::json::array all;
    for (ReportedRun& run : runs_) {
      stop_point();
      all.push_back(run.document());
    }
    return all;
  }

  /// The text of a live report's document, made again only if a file has changed. Throws Error{io} if a folder is gone.
  [[nodiscard]] const std::string& live_text() {
    std::string stamp;
    for (const ReportedRun& run : runs_) {
      if (std::error_code none; !stamp_.empty() && !std::filesystem::is_directory(run.folder(), none)) {
        throw Error(ErrorCode::io, fmt::format("the run's folder '{}' is gone", run.name()));
      }
      stamp += run.stamp() + '\n';
    }
    if (stamp != stamp_) {
      text_ = report::document_text(documents(), SHARDRUN_VERSION, true);
      stamp_ = std::move(stamp);
    }
    return text_;
  }

  [[nodiscard]] std::filesystem::path usual_file() const {
    return runs_.size() == 1 ? runs_.front().folder() / "report.html" : std::filesystem::path("report.html");
  }

  [[nodiscard]] std::vector<std::filesystem::path> read_files() const {
    std::vector<std::filesystem::path> all;
    for (const ReportedRun& run : runs_) {
      std::ranges::move(files_of(run.folder()), std::back_inserter(all));
    }
    return all;
  }

 private:
  std::vector<ReportedRun> runs_;
  std::string stamp_;
  std::string text_;
};

Endpoint live_endpoint(const Parsed& parsed) {
  const std::string text = parsed.get("at").value_or("127.0.0.1:0");
  const std::optional<Endpoint> endpoint = endpoint_of(text);
  if (!endpoint) {
    throw Error(
        ErrorCode::usage,
        fmt::format("--at: expected ADDRESS:PORT, [ADDRESS]:PORT or PORT, as in 127.0.0.1:8090; found '{}'", text));
  }
  boost::system::error_code is_name;
  const bool is_here =
      endpoint->host == "localhost" || boost::asio::ip::make_address(endpoint->host, is_name).is_loopback();
  if (!is_here) {
    throw Error(ErrorCode::usage,
                fmt::format("--at: a live report is for this machine alone: expected a loopback address, "
                            "such as 127.0.0.1:8090; found '{}'",
                            text));
  }
  return *endpoint;
}

/// Serves the page until a signal asks to stop.
int serve_live(const Parsed& parsed, Report& report) {
  const Endpoint endpoint = live_endpoint(parsed);
  static_cast<void>(report.live_text());  // so that the command shows errors now, and not only a browser
  const auto answer = [&](const std::string& path) -> std::optional<http::Response> {
    if (path == "/") {
      return http::Response{.type = "text/html; charset=utf-8",
                            .body = report::page_text(report.title(), report.live_text(), true)};
    }
    if (path == "/document.json") {
      return http::Response{.type = "application/json", .body = report.live_text()};
    }
    return std::nullopt;
  };
  std::promise<void> asked_to_stop;
  std::future<void> stop = asked_to_stop.get_future();
  const http::PageServer server(endpoint, answer);
  fmt::print("serving {} at {}/ (Ctrl-C ends it)\n", printable(report.title()), server.address());
  std::fflush(stdout);
  listen_for_stop([&](int) { asked_to_stop.set_value(); });
  stop.wait();
  listen_for_stop({});
  return 0;
}

int report(std::span<const std::string> words) {
  const Parsed parsed =
      parse("report", words,
            {{.name = "to",
              .value = "FILE",
              .help = "the file (default: report.html in the folder of the run; of several runs, here)"},
             replace_option(),
             {.name = "live", .help = "serve the page to browsers on this machine, with the newest numbers"},
             {.name = "at",
              .value = "ADDRESS:PORT",
              .help = "with --live: where to serve it (default 127.0.0.1 and any free port)",
              .needs = {"live"}}},
            1, std::numeric_limits<std::size_t>::max());
  if (parsed.help_shown) {
    return 0;
  }
  for (const char* const option : {"to", "replace"}) {
    if (parsed.has("live") && parsed.has(option)) {
      throw Error(ErrorCode::usage,
                  fmt::format("report: --{} has no effect with --live, which writes no file", option));
    }
  }
  catch_stop_signals();
  Report made(parsed.positional);
  if (parsed.has("live")) {
    return serve_live(parsed, made);
  }
  const std::filesystem::path to = parsed.get("to") ? std::filesystem::path(*parsed.get("to")) : made.usual_file();
  if (parsed.has("to")) {
    require_report_or_new(parsed, to);
  }
  files::require_not_read(to, made.read_files());
  write_report(parsed, to, made.title(), made.documents());
  return 0;
}

const RegisterCommand report_command(
    {.name = "report", .arguments = "RUN...", .help = "a page (HTML) about one or several runs", .run = report});

}  // namespace

void require_report_or_new(const Parsed& parsed, const std::filesystem::path& file) {
  if (!report::is_page(file)) {
    require_new(parsed, file);
  }
}

void write_report(const Parsed& parsed, const std::filesystem::path& file, std::string_view title,
                  boost::json::array runs) {
  require_report_or_new(parsed, file);
  files::write_file_atomically(
      file, report::page_text(title, report::document_text(std::move(runs), SHARDRUN_VERSION, false), false));
  fmt::print("{}\n", printable(files::human_path(file)));
}

}  // namespace shardrun::cli
