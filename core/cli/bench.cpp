#include "core/bench/bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/standard_error.h"
#include "core/bench/measuring.h"
#include "core/cli/options.h"
#include "core/cli/process.h"
#include "core/job/schema.h"
#include "core/launch/world.h"
#include "core/screen/progress.h"
#include "core/screen/screen.h"

namespace shardrun::cli {
namespace {

constexpr const char* usual_ops = "all_reduce";
constexpr const char* usual_sizes = "8-64M";

std::string usual_transport() { return *job::find_setting(job::section_named("job"), "transport")->spec.default_value; }

std::vector<OptionSyntax> syntax() {
  return {{.name = "transport", .value = "NAME", .help = "the transport (default " + usual_transport() + ")"},
          {.name = "ranks",
           .value = "N",
           .help = "number of processes (default 2, or as many as mpirun, srun or variables have started)"},
          {.name = "op",
           .value = "LIST",
           .help = std::string("ops separated by commas, or all (default ") + usual_ops + ")"},
          {.name = "sizes",
           .value = "LIST",
           .help = std::string("sizes in bytes or ranges FROM-TO; K, M and G are powers of 1024 (default ") +
                   usual_sizes + ")"},
          {.name = "factor", .value = "N", .help = "factor from one size of a range to the next (default 4)"},
          {.name = "dtype", .value = "LIST", .help = "element types, or all (default f32)"},
          {.name = "redop", .value = "LIST", .help = "reductions, or all (default sum)"},
          {.name = "iters", .value = "N", .help = "timed iterations (default 20 to 1000, depending on size)"},
          {.name = "warmup", .value = "N", .help = "untimed iterations before them (default a tenth)"},
          {.name = "in-place", .help = "measure only in place, if the op can be (default both)"},
          {.name = "out-of-place", .help = "measure only out of place"},
          {.name = "timeout", .value = "SECONDS", .help = "timeout of each op (default 60)"},
          plugins_option(),
          {.name = "set",
           .value = "transport.NAME.KEY=VALUE",
           .help = "an option of the transport (may be repeated)",
           .repeated = true},
          {.name = "json", .help = "print JSON on standard output at the end"}};
}

void add_option(bench::Settings& settings, const std::string& text) {
  const std::string prefix = "transport." + settings.transport + ".";
  const std::size_t end = text.find('=');
  if (!text.starts_with(prefix) || end == std::string::npos) {
    throw Error(
        ErrorCode::usage,
        fmt::format("--set {}: expected {}KEY=VALUE, an option of the transport that is measured", text, prefix));
  }
  const std::string key = text.substr(prefix.size(), end - prefix.size());
  if (std::ranges::any_of(settings.options, [&](const auto& given) { return given.first == key; })) {
    throw Error(ErrorCode::usage, fmt::format("--set {}{} is given more than once", prefix, key));
  }
  settings.options.emplace_back(key, text.substr(end + 1));
}

/// `world`: the ranks that another launcher started; nothing: bench starts the ranks itself.
bench::Settings settings_of(const Parsed& parsed, const std::optional<launch::World>& world) {
  constexpr std::int64_t most_iterations = 100'000;  // with these, a rank's times fit one message
  bench::Settings settings;
  settings.transport = parsed.get("transport").value_or(usual_transport());
  settings.ranks = static_cast<int>(parsed.integer("ranks", world ? world->size : 2, 1, 1024));
  if (world && settings.ranks != world->size) {
    throw Error(ErrorCode::usage,
                fmt::format("--ranks {}: {} started {}: leave --ranks out, or start as many", settings.ranks,
                            world->launcher, counted(world->size, "process", "processes")));
  }
  const std::string ops = parsed.get("op").value_or(usual_ops);
  settings.opcodes = bench::parse_ops(ops);
  if (settings.ranks == 1 && ops == "all") {
    std::erase_if(settings.opcodes, bench::needs_peer);
  } else if (settings.ranks == 1 && std::ranges::any_of(settings.opcodes, bench::needs_peer)) {
    throw Error(ErrorCode::usage, "--op: send_recv needs at least two --ranks");
  }
  settings.sizes = bench::parse_sizes(parsed.get("sizes").value_or(usual_sizes),
                                      static_cast<std::uint64_t>(parsed.integer("factor", 4, 2, 1024)));
  settings.dtypes = bench::parse_dtypes(parsed.get("dtype").value_or("f32"));
  settings.reductions = bench::parse_reductions(parsed.get("redop").value_or("sum"));
  if (parsed.has("redop") && std::ranges::none_of(settings.opcodes, bench::reduces)) {
    throw Error(ErrorCode::usage,
                fmt::format("--redop: none of the ops ({}) reduces anything: leave it out, or name such an --op", ops));
  }
  if (parsed.has("iters")) {
    settings.iterations = parsed.integer("iters", 1, 1, most_iterations);
  }
  if (parsed.has("warmup")) {
    settings.warm_up = parsed.integer("warmup", 0, 0, most_iterations);
  }
  if (parsed.has("in-place") != parsed.has("out-of-place")) {
    settings.places = parsed.has("in-place") ? bench::Placing::in_place : bench::Placing::out_of_place;
  }
  settings.timeout = parsed.real("timeout", settings.timeout, 0.1, 1e6);
  settings.plugins = given_plugins(parsed);
  for (const std::string& option : parsed.all("set")) {
    add_option(settings, option);
  }
  settings.device = bench::device_of(settings);
  return settings;
}

/// Shows a measurement while it runs. Prints each finished row on standard output, unless that gets JSON. A terminal
/// also shows what is being measured.
class Display {
 public:
  /// `is_hosted`: another launcher passes on the output, so that only whole lines are readable.
  Display(const bench::Setting& setting, bool json, bool is_hosted)
      : setting_(setting),
        json_(json),
        sink_(screen::descriptor_sink(json ? STDERR_FILENO : STDOUT_FILENO, std::getenv("TERM"))),
        screen_(sink_.write) {
    sink_.is_terminal = sink_.is_terminal && !is_hosted;
    sink_.write = [this](std::string_view text) { screen_.write(text); };
  }

  void begin(std::size_t number, std::size_t cases, const std::string& text) {
    if (number == 0) {
      print(bench::title(setting_), true);
    }
    if (sink_.is_terminal) {
      live_.write(fmt::format("[{}/{}] {}", number + 1, cases, text));
    }
  }

  void row(const bench::Row& row) {
    const bool is_op = row.measured.what == bench::What::op;
    if (is_op && !has_ops_) {
      print(bench::columns(), true);
      has_ops_ = true;
    }
    print(is_op ? bench::line(row) : bench::ceiling_line(row, setting_), true);
  }

  void line(const std::string& text) { print(text + "\n", false); }

  void finish() {
    live_.clear();
    (void)screen_.finish([] { return true; });
  }

 private:
  void print(const std::string& text, bool is_result) {
    if (is_result && json_) {
      return;
    }
    live_.clear();
    screen_.write(text);
  }

  const bench::Setting& setting_;
  bool json_;
  screen::ProgressSink sink_;
  screen::Screen screen_;
  screen::LiveLine live_{sink_};
  bool has_ops_ = false;
};

/// Prints the outcome. Returns the exit code.
int tell(const bench::Setting& setting, const bench::Outcome& outcome, bool json) {
  if (json) {
    fmt::print("{}", bench::to_json(setting, outcome.rows));
  }
  std::fflush(stdout);
  if (outcome.wrong > 0) {
    write_to_standard_error(
        fmt::format("shardrun: {} elements are wrong: the rows whose #wrong is not 0\n", outcome.wrong));
  }
  if (!outcome.error.empty() || outcome.exit_code > 1) {
    write_to_standard_error(fmt::format(
        "shardrun: {}\n", outcome.error.empty() ? "stopped before everything was measured" : outcome.error));
  }
  return outcome.exit_code;
}

/// Measures, either as the first rank of another launcher's ranks or as the process that starts all ranks.
int measure(const bench::Settings& settings, const std::optional<launch::World>& world,
            std::span<const std::string> words, bool json) {
  const bench::Setting setting = bench::check(settings, world ? &*world : nullptr);
  Display display(setting, json, world.has_value());
  const bench::Callbacks callbacks = {.on_row = [&](const bench::Row& row) { display.row(row); },
                                      .on_begin = [&](std::size_t number, std::size_t cases,
                                                      const std::string& text) { display.begin(number, cases, text); },
                                      .on_line = [&](const std::string& line) { display.line(line); }};
  const auto tell_all = [&](const bench::Outcome& outcome) {
    display.finish();
    return tell(setting, outcome, json);
  };
  if (world) {
    catch_stop_signals();
    const int code = bench::run_hosted_first(settings, *world, stop_signal, callbacks, tell_all);
    ignore_stop_signals();
    return code;
  }
  std::vector<std::string> arguments = {"shardrun", "bench"};
  arguments.insert(arguments.end(), words.begin(), words.end());
  return tell_all(bench::run(settings, arguments, callbacks));
}

/// This process's place among ranks that another launcher started; nothing if bench starts the ranks itself.
std::optional<launch::World> world_of_bench(const Parsed& parsed) {
  launch::require_whole_world();
  std::optional<launch::World> world = launch::world_of();
  const bool is_one_of = world && (world->size > 1 || parsed.get("ranks").value_or("") == "1");
  return is_one_of ? world : std::nullopt;
}

int run_bench(std::span<const std::string> words) {
  const std::optional<launch::RankContext> context = launch::take_rank_context();
  const Parsed parsed = parse("bench", words, syntax(), 0, 0);
  if (parsed.help_shown) {
    return 0;
  }
  if (context) {
    return bench::measure_as_rank(settings_of(parsed, {}), *context);
  }
  const std::optional<launch::World> world = world_of_bench(parsed);
  const bench::Settings settings = settings_of(parsed, world);
  if (!world || world->rank == 0) {
    return measure(settings, world, words, parsed.has("json"));
  }
  static_cast<void>(bench::check(settings, &*world));
  catch_stop_signals();
  const int code = bench::run_hosted_other(settings, *world, stop_signal);
  ignore_stop_signals();
  return code;
}

const RegisterCommand bench_command(
    {.name = "bench",
     .arguments = "[options]",
     .help = "time a transport's ops, check their results, and measure this machine's limits",
     .run = run_bench});

}  // namespace
}  // namespace shardrun::cli
