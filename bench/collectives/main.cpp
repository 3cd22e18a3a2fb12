// Compares float32 collectives among processes of this machine: the transport plugins, the functions of Open MPI and
// Gloo, and the machine's ceilings. All take turns on the same buffers in the same processes.

#include <fmt/format.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <boost/program_options.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "bench/collectives/race.h"
#include "core/base/error.h"

namespace {

using namespace shardrun;
using namespace shardrun::bench;

constexpr Kind kinds[] = {Kind::all_reduce, Kind::all_gather, Kind::reduce_scatter,
                          Kind::all_to_all, Kind::broadcast,  Kind::send_recv};

struct Options {
  std::uint32_t ranks = 2;
  std::vector<std::string> ops;
  std::vector<std::uint64_t> sizes;
  std::vector<std::string> transports;
  std::vector<std::string> rivals;
  std::string plugins;
  int rounds = 11;
  double seconds = 0.01;
  bool json = false;
  std::string folder;  ///< folder in which the ranks meet
  std::uint32_t rank = 0;
  bool under_mpi = false;
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::stringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) {
    parts.push_back(part);
  }
  return parts;
}

/// Whether a contestant's name has options, as only those of transports may.
bool has_options(const std::string& name) { return name.find(':') != std::string::npos; }

/// Parses a size such as "8", "64K" or "1M".
std::uint64_t bytes_of(const std::string& text) {
  std::size_t end = 0;
  const unsigned long long number = text.empty() || text[0] == '-' ? 0 : std::stoull(text, &end);
  const std::string unit = text.substr(end);
  const unsigned shift = unit == "K" ? 10 : unit == "M" ? 20 : 0;
  if (number == 0 || (shift == 0 && !unit.empty())) {
    throw Error(ErrorCode::usage, fmt::format("--sizes: '{}' is not a size, such as 8, 64K or 1M", text));
  }
  return number << shift;
}

template <class Is>
void check_names(const std::vector<std::string>& names, const char* option, const std::string& known, Is is_known) {
  for (const std::string& name : names) {
    if (!is_known(name)) {
      throw Error(ErrorCode::usage, fmt::format("{}: '{}' is none of {}", option, name, known));
    }
  }
}

std::filesystem::path own_path() { return std::filesystem::read_symlink("/proc/self/exe"); }

/// The names of built transports that need only this machine.
std::vector<std::string> default_transports(const std::filesystem::path& plugins) {
  std::vector<std::string> found;
  for (const char* name : {"shm", "tcp", "gloo", "mpi"}) {
    if (std::filesystem::exists(plugins / fmt::format("shardrun_transport_{}.so", name)) &&
        (std::string(name) != "mpi" || SHARDRUN_BENCH_HAS_MPI)) {
      found.emplace_back(name);
    }
  }
  return found;
}

/// The parsed options; nothing if help was requested and printed.
std::optional<Options> parse(int argc, char** argv) {
  namespace po = boost::program_options;
  Options options;
  std::string ops;
  std::string sizes;
  std::string transports;
  std::string rivals;
  po::options_description visible("Options");
  visible.add_options()("help", "this text")(  //
      "ranks", po::value(&options.ranks)->default_value(2), "processes")(
      "ops", po::value(&ops)->default_value("all_reduce,all_gather,reduce_scatter,all_to_all,broadcast,send_recv"),
      "what to do; send_recv: to the next rank, from the one before")(
      "sizes", po::value(&sizes)->default_value("8,64,512,4K,16K,64K,256K,1M,4M,16M,64M"),
      "bytes of a rank's larger buffer")("rounds", po::value(&options.rounds)->default_value(11),
                                         "how often everyone has its turn")(
      "seconds", po::value(&options.seconds)->default_value(0.01), "how long a turn takes, about")(
      "transports", po::value(&transports),
      "plugins to measure, with options or without, as gloo:protect=encrypt:chunk=512; else those of shm, gloo and mpi "
      "that are built")(
      "rivals", po::value(&rivals)->default_value("mpi,gloo"),
      "libraries to measure them against, or transports with options, as gloo:protect=none; none: ''")(
      "plugins", po::value(&options.plugins), "their folder; else the build's")("json", "print one JSON object");
  po::options_description all;
  all.add(visible).add_options()("folder", po::value(&options.folder), "")("rank", po::value(&options.rank), "")(
      "under-mpi", "");
  po::variables_map values;
  try {
    po::store(po::parse_command_line(argc, argv, all), values);
    po::notify(values);
  } catch (const po::error& error) {
    throw Error(ErrorCode::usage, error.what());
  }
  if (values.contains("help")) {
    std::cout << "collectives: transports, MPI, Gloo and the machine itself, in turns over the same buffers\n"
              << visible;
    return std::nullopt;
  }
  options.json = values.contains("json");
  options.under_mpi = values.contains("under-mpi");
  if (options.plugins.empty()) {
    options.plugins = own_path().parent_path().parent_path() / "lib/shardrun/v1";
  }
  options.plugins = std::filesystem::absolute(options.plugins).lexically_normal();
  options.ops = split(ops);
  options.rivals = split(rivals);
  options.transports = transports.empty() ? default_transports(options.plugins) : split(transports);
  for (const std::string& size : split(sizes)) {
    options.sizes.push_back(bytes_of(size));
  }
  check_names(options.ops, "--ops", "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv",
              [](const std::string& name) {
                return std::any_of(std::begin(kinds), std::end(kinds),
                                   [&](Kind kind) { return name == name_of(kind); });
              });
  check_names(options.rivals, "--rivals", "mpi, gloo, TRANSPORT:KEY=VALUE",
              [](const std::string& name) { return name == "mpi" || name == "gloo" || has_options(name); });
  if (options.ranks < 2 || options.ranks > Rendezvous::most_ranks || options.rounds < 1 || options.sizes.empty()) {
    throw Error(ErrorCode::usage,
                fmt::format("from 2 to {} ranks, a round and a size are needed", Rendezvous::most_ranks));
  }
  return options;
}

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string size_text(std::uint64_t bytes) {
  return bytes % (1U << 20U) == 0 ? fmt::format("{}M", bytes >> 20U)
         : bytes % 1024 == 0      ? fmt::format("{}K", bytes >> 10U)
                                  : std::to_string(bytes);
}

void print(const Row& row) {
  fmt::print("{:<14} {:<12} {:>6}", name_of(row.kind), row.in_place ? "in place" : "", size_text(row.bytes));
  for (const Result& result : row.results) {
    fmt::print("  {} {:.2f} us{}", result.contestant, median(result.microseconds),
               result.wrong == 0 ? "" : fmt::format(" WRONG in {}", result.wrong));
  }
  for (const Result& ours : row.results) {
    for (const Result& rival : row.results) {
      if (ours.is_ours && !rival.is_ours) {
        fmt::print("{} {}/{} {:.2f}", &ours == &row.results[0] && &rival == &row.results[1] ? " |" : "",
                   ours.contestant, rival.contestant, speed_against(ours, rival));
      }
    }
  }
  fmt::print("\n");
  std::fflush(stdout);
}

boost::json::object to_json(const Row& row) {
  boost::json::array results;
  for (const Result& result : row.results) {
    boost::json::object entry = {{"name", result.contestant},
                                 {"time_us", median(result.microseconds)},
                                 {"rounds_us", boost::json::value_from(result.microseconds)},
                                 {"wrong", result.wrong}};
    if (result.is_ours) {
      boost::json::object speeds;
      for (const Result& rival : row.results) {
        if (!rival.is_ours) {
          speeds[rival.contestant] = speed_against(result, rival);
        }
      }
      entry["speed_against"] = std::move(speeds);
    }
    results.push_back(std::move(entry));
  }
  return {{"op", name_of(row.kind)}, {"in_place", row.in_place}, {"bytes", row.bytes}, {"results", std::move(results)}};
}

Contestants contestants_of(const Options& options, Rendezvous& rendezvous, const device::HostMemory& arena,
                           const Arenas& arenas) {
  Contestants all;
  for (const std::string& name : options.transports) {
    all.push_back(make_transport(rendezvous, arena, options.plugins, name, true));
  }
  if (options.under_mpi && has(options.rivals, "mpi")) {
    all.push_back(make_mpi());
  }
  for (const std::string& name : options.rivals) {
    if (has_options(name)) {
      all.push_back(make_transport(rendezvous, arena, options.plugins, name, false));
    }
  }
  if (has(options.rivals, "gloo")) {
    all.push_back(make_gloo(rendezvous));
  }
  all.push_back(make_bare_reduction(arenas));
  all.push_back(make_memcpy());
  return all;
}

/// Runs as one rank. Returns whether all results were right.
bool run(const Options& options, std::uint32_t rank, std::uint32_t size) {
  Rendezvous rendezvous(options.folder, rank, size);
  const std::uint64_t largest = *std::max_element(options.sizes.begin(), options.sizes.end());
  const device::HostMemory arena(2 * std::max<std::uint64_t>(largest, 8 * size) + 65'536);
  std::fill_n(arena.data(), arena.bytes(), std::byte{0});
  const Arenas arenas(rendezvous, arena);
  const Contestants contestants = contestants_of(options, rendezvous, arena, arenas);
  const bool prints = rank == 0;
  boost::json::object overheads;
  for (const auto& contestant : contestants) {
    if (contestant->is_ours()) {
      const double ns = rendezvous.greatest(call_overhead(*contestant));
      overheads[contestant->name()] = ns;
      if (prints && !options.json) {
        fmt::print("{}: op_start and op_wait of a group of one take {:.0f} ns\n", contestant->name(), ns);
      }
    }
  }
  boost::json::array rows;
  bool right = true;
  for (const Kind kind : kinds) {
    if (!has(options.ops, name_of(kind))) {
      continue;
    }
    for (const bool in_place : {true, false}) {
      if (in_place ? kind != Kind::all_reduce && kind != Kind::broadcast : kind == Kind::broadcast) {
        continue;
      }
      for (const std::uint64_t bytes : options.sizes) {
        const Row row = race(rendezvous, arena, contestants, kind, in_place, bytes, options.rounds, options.seconds);
        for (const Result& result : row.results) {
          right = right && result.wrong == 0;
        }
        if (prints && options.json) {
          rows.push_back(to_json(row));
        } else if (prints) {
          print(row);
        }
      }
    }
  }
  if (prints && options.json) {
    std::cout << boost::json::object{{"ranks", size}, {"call_ns", overheads}, {"rows", rows}} << std::endl;
  }
  rendezvous.barrier();
  return right;
}

int run_as_rank(const Options& options) {
  const std::optional<Started> started = options.under_mpi ? start_mpi() : std::nullopt;
  const bool right = started ? run(options, started->rank, started->size) : run(options, options.rank, options.ranks);
  if (started) {
    end_mpi();
  }
  return right ? 0 : 1;
}

[[noreturn]] void become(std::vector<std::string> command) {
  std::vector<char*> raw;
  for (std::string& word : command) {
    raw.push_back(word.data());
  }
  raw.push_back(nullptr);
  execvp(raw[0], raw.data());
  fmt::print(stderr, "collectives: {} cannot be run\n", command[0]);
  _exit(127);
}

pid_t start(const std::vector<std::string>& command) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) {
      _exit(1);
    }
    become(command);
  }
  return child;
}

/// The command of mpirun. If there are more ranks than cores, makes Open MPI yield while it waits,
/// as its documentation recommends.
std::vector<std::string> mpi_command(const Options& options) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores), &cores);
  const bool is_crowded = static_cast<int>(options.ranks) > CPU_COUNT(&cores);
  std::vector<std::string> command = {
      SHARDRUN_BENCH_MPIEXEC, "--oversubscribe",     "--bind-to", "none", "-n", std::to_string(options.ranks), "--mca",
      "mpi_yield_when_idle",  is_crowded ? "1" : "0"};
  if (geteuid() == 0) {
    command.insert(command.begin() + 1, "--allow-run-as-root");
  }
  return command;
}

int run_all(const Options& options, int argc, char** argv) {
  std::string folder = std::filesystem::temp_directory_path() / "shardrun-collectives-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    throw Error(ErrorCode::io, fmt::format("no folder {} can be made", folder));
  }
  std::vector<std::string> own = {own_path()};
  own.insert(own.end(), argv + 1, argv + argc);
  own.insert(own.end(), {"--folder", folder});
  std::vector<pid_t> children;
  if (SHARDRUN_BENCH_HAS_MPI && (has(options.rivals, "mpi") || has(options.transports, "mpi"))) {
    std::vector<std::string> command = mpi_command(options);
    command.insert(command.end(), own.begin(), own.end());
    command.emplace_back("--under-mpi");
    children.push_back(start(command));
  } else {
    for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
      std::vector<std::string> command = own;
      command.insert(command.end(), {"--rank", std::to_string(rank)});
      children.push_back(start(command));
    }
  }
  // If a rank fails, kills the others, because they would wait for it forever.
  int worst = 0;
  while (!children.empty()) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, 0);
    std::erase(children, ended);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    if (code != 0 && worst == 0) {
      for (const pid_t child : children) {
        kill(child, SIGKILL);
      }
    }
    worst = worst == 0 ? code : worst;
  }
  std::filesystem::remove_all(folder);
  return worst;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::optional<Options> options = parse(argc, argv);
    if (!options) {
      return 0;
    }
    return options->folder.empty() ? run_all(*options, argc, argv) : run_as_rank(*options);
  } catch (const Error& error) {
    fmt::print(stderr, "collectives: {}\n", error.message());
    return error.code() == ErrorCode::usage ? 2 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "collectives: {}\n", error.what());
    return 1;
  }
}
