#include "bench/collectives/race.h"

#include <algorithm>
#include <chrono>

namespace shardrun::bench {
namespace {

/// Element i that a rank gives: an integer, so that sums over all ranks are exact.
float given(std::uint32_t rank, std::uint64_t i) { return static_cast<float>((i * 7 + rank * 131) % 1021); }

/// Element i of the result on rank `e.rank`.
float expected(const Exercise& e, std::uint64_t i) {
  switch (e.kind) {
    case Kind::all_gather: return given(static_cast<std::uint32_t>(i / e.count), i % e.count);
    case Kind::all_to_all: return given(static_cast<std::uint32_t>(i / e.count), e.rank * e.count + i % e.count);
    case Kind::broadcast: return given(0, i);
    case Kind::send_recv: return given(e.previous(), i);
    case Kind::all_reduce:
    case Kind::reduce_scatter: break;
  }
  const std::uint64_t at = e.kind == Kind::reduce_scatter ? e.rank * e.count + i : i;
  float sum = 0;
  for (std::uint32_t r = 0; r < e.size; ++r) {
    sum += given(r, at);
  }
  return sum;
}

std::uint64_t count_wrong(const Exercise& e, const Run& run) {
  std::fill_n(e.recv, e.received(), -1.0F);
  for (std::uint64_t i = 0; i < e.sent(); ++i) {
    e.send[i] = given(e.rank, i);
  }
  run();
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < e.received(); ++i) {
    wrong += e.recv[i] == expected(e, i) ? 0 : 1;
  }
  return wrong;
}

double seconds_of(const Run& run, std::uint64_t times) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t i = 0; i < times; ++i) {
    run();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// How many runs take about `seconds`; the same on all ranks. Uses the fastest of a few tries, because other programs
/// may use the machine.
std::uint64_t times_for(Rendezvous& rendezvous, const Run& run, double seconds) {
  constexpr std::uint64_t most = 200'000;
  for (std::uint64_t times = 1;; times *= 4) {
    double taken = 1e9;
    for (int attempt = 0; attempt < 4; ++attempt) {
      rendezvous.barrier();
      taken = std::min(taken, rendezvous.greatest(seconds_of(run, times)));
    }
    if (taken > seconds / 4 || times >= most) {
      const double wanted = static_cast<double>(times) * seconds / taken;
      return std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wanted), 1, most);
    }
  }
}

Exercise exercise_of(const Rendezvous& rendezvous, const device::HostMemory& arena, Kind kind, bool in_place,
                     std::uint64_t bytes) {
  Exercise e{.kind = kind, .in_place = in_place, .rank = rendezvous.rank(), .size = rendezvous.size()};
  const bool has_blocks = kind == Kind::all_gather || kind == Kind::reduce_scatter || kind == Kind::all_to_all;
  e.count = std::max<std::uint64_t>(1, bytes / sizeof(float) / (has_blocks ? e.size : 1));
  e.send = reinterpret_cast<float*>(arena.data());
  e.recv = in_place ? e.send : e.send + (e.sent() + 1023) / 1024 * 1024;
  return e;
}

}  // namespace

std::string_view name_of(Kind kind) noexcept {
  switch (kind) {
    case Kind::all_reduce: return "all_reduce";
    case Kind::all_gather: return "all_gather";
    case Kind::reduce_scatter: return "reduce_scatter";
    case Kind::all_to_all: return "all_to_all";
    case Kind::broadcast: return "broadcast";
    case Kind::send_recv: return "send_recv";
  }
  return "";
}

std::uint64_t Exercise::sent() const noexcept {
  return kind == Kind::reduce_scatter || kind == Kind::all_to_all ? size * count
         : kind == Kind::broadcast && rank != 0                   ? 0
                                                                  : count;
}

std::uint64_t Exercise::received() const noexcept {
  return kind == Kind::all_gather || kind == Kind::all_to_all ? size * count : count;
}

Row race(Rendezvous& rendezvous, const device::HostMemory& arena, const Contestants& contestants, Kind kind,
         bool in_place, std::uint64_t bytes, int rounds, double seconds) {
  const Exercise e = exercise_of(rendezvous, arena, kind, in_place, bytes);
  Row row{.kind = kind, .in_place = in_place, .bytes = std::max(e.sent(), e.received()) * sizeof(float)};
  std::vector<Run> runs;
  std::vector<std::uint64_t> times;
  for (const auto& contestant : contestants) {
    Run run = contestant->prepare(e);
    if (!run) {
      continue;
    }
    Result& result = row.results.emplace_back();
    result.contestant = contestant->name();
    result.is_ours = contestant->is_ours();
    result.is_ceiling = contestant->is_ceiling();
    rendezvous.barrier();
    if (!result.is_ceiling) {
      const std::uint64_t wrong = count_wrong(e, run);
      rendezvous.barrier();
      result.wrong = static_cast<std::uint64_t>(rendezvous.greatest(static_cast<double>(wrong)));
    }
    // Repeated sums in place would grow, except those of zeros.
    std::fill_n(e.send, e.sent(), 0.0F);
    std::fill_n(e.recv, e.received(), 0.0F);
    times.push_back(times_for(rendezvous, run, seconds));
    runs.push_back(std::move(run));
  }
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      rendezvous.barrier();
      const double taken = seconds_of(runs[i], times[i]);
      row.results[i].microseconds.push_back(1e6 * rendezvous.greatest(taken) / static_cast<double>(times[i]));
    }
  }
  return row;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double speed_against(const Result& ours, const Result& rival) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < ours.microseconds.size(); ++round) {
    ratios.push_back(rival.microseconds[round] / ours.microseconds[round]);
  }
  return median(std::move(ratios));
}

}  // namespace shardrun::bench
