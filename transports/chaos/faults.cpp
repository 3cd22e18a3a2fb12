#include "transports/chaos/faults.h"

#include <cmath>

namespace shardrun::chaos_transport {
namespace {

constexpr std::int64_t nobody = -1;
constexpr std::int64_t most_ranks = std::int64_t{1} << 24;
constexpr double longest_delay_ms = 3'600'000;

/// The name of the fault's option; empty if no fault is set. Throws if two faults are set.
std::string name_of_fault(const sdk::OptionValues& options, Fault& fault) {
  std::string name;
  const auto choose = [&](bool asked, const char* option, Fault meant) {
    if (asked && !name.empty()) {
      throw sdk::InvalidJob(name + " and " + option + " are both set: choose one fault at a time");
    }
    if (asked) {
      name = option;
      fault = meant;
    }
  };
  choose(options.integer("kill_rank") != nobody, "kill_rank", Fault::kill);
  choose(options.boolean("corrupt"), "corrupt", Fault::corrupt);
  choose(options.boolean("stall"), "stall", Fault::stall);
  choose(options.integer("drop_peer") != nobody, "drop_peer", Fault::drop_peer);
  return name;
}

void require_rank(const std::string& option, std::int64_t rank, std::uint32_t world_size) {
  if (rank != nobody && world_size != 0 && rank >= std::int64_t{world_size}) {
    throw sdk::InvalidJob(option + " = " + std::to_string(rank) + ": the job has ranks 0 to " +
                          std::to_string(world_size - 1));
  }
}

/// The rank that the fault concerns. The option kill_rank gives fault and rank in one.
std::int64_t rank_of(const sdk::OptionValues& options, const std::string& name, Fault fault) {
  const std::int64_t rank = options.integer("rank");
  const std::int64_t killed = options.integer("kill_rank");
  if (fault == Fault::none) {
    return rank;
  }
  if (fault == Fault::kill) {
    if (rank != nobody && rank != killed) {
      throw sdk::InvalidJob("kill_rank = " + std::to_string(killed) +
                            " says which rank dies; leave out rank = " + std::to_string(rank));
    }
    return killed;
  }
  if (rank == nobody) {
    throw sdk::InvalidJob(name + " is set, but no rank: set rank to the one that it happens on");
  }
  return rank;
}

}  // namespace

std::vector<sdk::Option> options() {
  using namespace sdk;
  return {
      transport_option("over", "shm", "the transport that moves the bytes, with its own options in [transport.NAME]"),
      integer_option("rank", nobody, nobody, most_ranks,
                     "the rank that delay_ms, corrupt, stall and drop_peer are about; -1: delay_ms is about all"),
      integer_option("at_op", 0, 0, INT64_MAX,
                     "at which op of the rank, counted from 1 over all its groups as it starts them"),
      number_option("delay_ms", 0, 0, longest_delay_ms, "every op starts so much later, while the rank goes on"),
      integer_option("kill_rank", nobody, nobody, most_ranks, "this rank's process ends by SIGKILL as it starts at_op"),
      boolean_option(
          "corrupt", false,
          "one bit is flipped in what the rank receives with at_op, or with the first op then that receives"),
      boolean_option("stall", false, "the rank starts neither at_op nor any later op, until the job is aborted"),
      integer_option("drop_peer", nobody, nobody, most_ranks,
                     "from at_op on, what goes between the rank and this one is lost"),
  };
}

Faults faults_of(const sdk::OptionValues& options, std::uint32_t world_size) {
  Faults faults{.over = options.text("over")};
  const std::string name = name_of_fault(options, faults.fault);
  const std::int64_t rank = rank_of(options, name, faults.fault);
  const std::int64_t peer = options.integer("drop_peer");
  faults.delay_ns = std::llround(options.number("delay_ms") * 1e6);
  faults.at_op = static_cast<std::uint64_t>(options.integer("at_op"));
  if (faults.over.empty() || faults.over == "chaos") {
    throw sdk::InvalidJob("over = " + faults.over + ": name the transport that is to move the bytes");
  }
  if (faults.fault != Fault::none && faults.at_op == 0) {
    throw sdk::InvalidJob(name + " is set, but no at_op: say at which op, counted from 1");
  }
  if (faults.fault == Fault::none && faults.at_op != 0) {
    throw sdk::InvalidJob("at_op = " + std::to_string(faults.at_op) +
                          " has no effect: set kill_rank, corrupt, stall or drop_peer too, or leave it out");
  }
  if (faults.fault == Fault::none && faults.delay_ns == 0 && rank != nobody) {
    throw sdk::InvalidJob("rank = " + std::to_string(rank) +
                          " has no effect: set delay_ms, corrupt, stall or drop_peer too, or leave it out");
  }
  if (faults.fault == Fault::drop_peer && peer == rank) {
    throw sdk::InvalidJob("drop_peer = " + std::to_string(peer) + " is the rank itself: name another");
  }
  require_rank(faults.fault == Fault::kill ? "kill_rank" : "rank", rank, world_size);
  require_rank("drop_peer", peer, world_size);
  faults.rank = rank != nobody ? std::optional(rank) : std::nullopt;
  faults.peer = static_cast<std::uint32_t>(peer != nobody ? peer : 0);
  return faults;
}

Faults of_rank(Faults faults, std::uint32_t rank) {
  if (faults.rank && *faults.rank != std::int64_t{rank}) {
    faults.delay_ns = 0;
    faults.fault = Fault::none;
  }
  return faults;
}

}  // namespace shardrun::chaos_transport
