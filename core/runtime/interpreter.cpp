#include "core/runtime/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <span>
#include <tuple>
#include <type_traits>

#include "core/base/error.h"
#include "core/device/elements.h"
#include "plugins/loader/hooks.h"

namespace shardrun::runtime {
namespace {

using partition::Collective;
using partition::Transfer;

/// One member's side of a transfer.
struct Side {
  const Transfer* transfer = nullptr;
  Communicator::TransferBuffers buffers;
};

/// Whether the type is a 16-bit real, whose elements are summed as floats.
bool is_half(graph::DType dtype) noexcept { return dtype == graph::DType::bf16 || dtype == graph::DType::f16; }

/// The elements that a member sends, as the type T in which they are summed.
template <typename T>
std::vector<T> sent(const Side& side) {
  const graph::DType dtype = side.transfer->dtype;
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(side.buffers.send),
                                         static_cast<std::size_t>(side.buffers.send_bytes));
  std::vector<T> values(bytes.size() / graph::element_bytes(dtype));
  if (is_half(dtype)) {
    std::vector<double> wide(values.size());
    device::read_elements(dtype, bytes, wide);
    std::ranges::transform(wide, values.begin(), [](double value) { return static_cast<T>(value); });
  } else if (!values.empty()) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  return values;
}

template <typename T>
void receive(const Side& side, const std::vector<T>& values) {
  const std::span<std::byte> bytes(static_cast<std::byte*>(side.buffers.recv),
                                   values.size() * graph::element_bytes(side.transfer->dtype));
  if (is_half(side.transfer->dtype)) {
    device::write_elements(side.transfer->dtype, std::vector<double>(values.begin(), values.end()), bytes);
  } else if (!values.empty()) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
}

template <typename T>
std::vector<T> reduced(const std::vector<Side>& sides, const Fault* fault) {
  std::vector<T> result;
  for (std::size_t m = 0; m < sides.size(); ++m) {
    const bool swapped = fault != nullptr && fault->kind == Fault::Kind::swap && m == 1;
    const std::vector<T> part = sent<T>(sides[swapped ? 0 : m]);
    if (m == 0) {
      result.assign(part.begin(), part.end());
      continue;
    }
    for (std::size_t i = 0; i < result.size(); ++i) {
      result[i] = combined(sides[m].transfer->reduction, result[i], part[i]);
    }
  }
  if constexpr (std::is_same_v<T, double>) {
    device::round_elements(sides[0].transfer->rounded, result);
  }
  return result;
}

/// The member whose block is used as that of `member`: another one if the fault swaps blocks.
std::size_t source(std::size_t member, const Fault* fault) {
  return fault != nullptr && fault->kind == Fault::Kind::swap && member < 2 ? 1 - member : member;
}

std::size_t begin_of(const std::vector<std::int64_t>& counts, std::size_t member) {
  return static_cast<std::size_t>(
      std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(member), std::int64_t{0}));
}

/// Computes what all members receive, before any of it is written, because buffers may be shared.
template <typename T>
std::vector<std::vector<T>> outcome(const std::vector<Side>& sides, const Fault* fault) {
  std::vector<std::vector<T>> results(sides.size());
  const Transfer& first = *sides[0].transfer;
  const bool reduces = first.collective == Collective::all_reduce || first.collective == Collective::reduce_scatter;
  std::vector<T> sum;
  if (reduces) {
    sum = reduced<T>(sides, first.collective == Collective::all_reduce ? fault : nullptr);
  }
  for (std::size_t m = 0; m < sides.size(); ++m) {
    const Transfer& mine = *sides[m].transfer;
    switch (mine.collective) {
      case Collective::all_reduce: results[m] = sum; break;
      case Collective::reduce_scatter: {
        const std::size_t begin = std::min(begin_of(mine.recv_counts, source(m, fault)),
                                           sum.size() - static_cast<std::size_t>(mine.recv_counts[m]));
        results[m].assign(sum.begin() + static_cast<std::ptrdiff_t>(begin),
                          sum.begin() + static_cast<std::ptrdiff_t>(begin) + mine.recv_counts[m]);
        break;
      }
      case Collective::all_gather:
        for (std::size_t from = 0; from < sides.size(); ++from) {
          const std::vector<T> block = sent<T>(sides[source(from, fault)]);
          results[m].insert(results[m].end(), block.begin(), block.end());
        }
        break;
      case Collective::all_to_all:
      case Collective::halo:
        for (std::size_t from = 0; from < sides.size(); ++from) {
          const Side& side = sides[m == 0 ? source(from, fault) : from];
          const std::vector<T> all = sent<T>(side);
          const std::span<const T> block = std::span(all).subspan(
              begin_of(side.transfer->send_counts, m), static_cast<std::size_t>(side.transfer->send_counts[m]));
          results[m].insert(results[m].end(), block.begin(), block.end());
        }
        break;
      case Collective::send: break;
      case Collective::receive: {
        results[m] = sent<T>(sides[0]);
        break;
      }
    }
  }
  return results;
}

/// Throws Error{internal} if the members of a group start different transfers.
void require_match(const std::vector<Side>& sides) {
  const Transfer& first = *sides[0].transfer;
  for (const Side& side : sides) {
    const bool message = first.collective == Collective::send;
    const Collective expected = message && &side != &sides[0] ? Collective::receive : first.collective;
    if (side.transfer->collective != expected || side.transfer->name != first.name ||
        (message && side.transfer->recv.elements != first.send.elements && &side != &sides[0])) {
      throw Error(ErrorCode::internal,
                  fmt::format("{} of {} meets {} of {}", partition::to_string(first.collective), first.name,
                              partition::to_string(side.transfer->collective), side.transfer->name));
    }
  }
}

template <typename T>
void carry_out(const std::vector<Side>& sides, const Fault* fault) {
  if (fault != nullptr && fault->kind == Fault::Kind::omit) {
    for (const Side& side : sides) {
      if (side.buffers.recv != side.buffers.send && side.buffers.recv != nullptr) {
        receive(side, std::vector<T>(static_cast<std::size_t>(side.buffers.recv_bytes) /
                                     graph::element_bytes(side.transfer->dtype)));
      }
    }
    return;
  }
  std::vector<std::vector<T>> results = outcome<T>(sides, fault);
  for (std::size_t m = 0; m < sides.size(); ++m) {
    if (fault != nullptr && fault->kind == Fault::Kind::scale) {
      for (T& value : results[m]) {
        value = static_cast<T>(value + value / 64);
      }
    }
    receive(sides[m], results[m]);
  }
}

}  // namespace

/// Transfers between the ranks. The members of a group start its transfers in the same order. A transfer happens when
/// its last member has started it.
class Interpreter::Exchange {
 public:
  Exchange(const mesh::Mesh& mesh, std::optional<Fault> fault) : mesh_(mesh), fault_(fault) {
    sides_.resize(static_cast<std::size_t>(mesh.ranks()));
  }

  Communicator::Handle prepare(std::size_t rank, const Transfer& transfer,
                               const Communicator::TransferBuffers& buffers) {
    sides_[rank].push_back({{&transfer, buffers}, State::idle});
    return sides_[rank].size() - 1;
  }

  void start(std::size_t rank, Communicator::Handle handle) {
    sides_[rank][handle].state = State::started;
    const Transfer& transfer = *sides_[rank][handle].side.transfer;
    Group& group = group_of(rank, transfer);
    group
        .waiting[static_cast<std::size_t>(std::find(group.members.begin(), group.members.end(), rank) -
                                          group.members.begin())]
        .push_back(handle);
    while (std::none_of(group.waiting.begin(), group.waiting.end(), [](const auto& queue) { return queue.empty(); })) {
      happen(group);
    }
  }

  [[nodiscard]] bool complete(std::size_t rank, Communicator::Handle handle) const {
    return sides_[rank][handle].state != State::started;
  }

 private:
  enum class State { idle, started, complete };
  struct Prepared {
    Side side;
    State state = State::idle;
  };
  struct Group {
    std::vector<std::size_t> members;
    std::vector<std::deque<Communicator::Handle>> waiting;  ///< for each member, in the order of starting
  };

  /// The group of a transfer: the ranks along its axis, or the two ends of its link.
  Group& group_of(std::size_t rank, const Transfer& transfer) {
    std::vector<std::int64_t> line = mesh::line_through(mesh_, transfer.axis, static_cast<std::int64_t>(rank));
    if (transfer.link.from.exists()) {
      line = {line[transfer.link.from.index()], line[transfer.link.to.index()]};
    }
    Group& group = groups_[{transfer.axis, transfer.link, line}];
    if (group.members.empty()) {
      group.members.assign(line.begin(), line.end());
      group.waiting.resize(line.size());
    }
    return group;
  }

  void happen(Group& group) {
    std::vector<Side> sides;
    const Fault* fault = nullptr;
    for (std::size_t m = 0; m < group.members.size(); ++m) {
      const Communicator::Handle handle = group.waiting[m].front();
      group.waiting[m].pop_front();
      Prepared& prepared = sides_[group.members[m]][handle];
      prepared.state = State::complete;
      sides.push_back(prepared.side);
      if (fault_ && fault_->rank == group.members[m] && fault_->transfer == handle) {
        fault = &*fault_;
      }
    }
    require_match(sides);
    switch (sides[0].transfer->dtype) {
      case graph::DType::f32:
      case graph::DType::bf16:
      case graph::DType::f16: carry_out<float>(sides, fault); break;
      case graph::DType::f64: carry_out<double>(sides, fault); break;
      case graph::DType::i32: carry_out<std::int32_t>(sides, fault); break;
      case graph::DType::i64: carry_out<std::int64_t>(sides, fault); break;
      case graph::DType::u8:
      case graph::DType::i8: carry_out<std::uint8_t>(sides, fault); break;
    }
  }

  const mesh::Mesh mesh_;
  std::optional<Fault> fault_;
  std::vector<std::vector<Prepared>> sides_;  ///< for each rank, by handle
  std::map<std::tuple<mesh::AxisId, partition::Link, std::vector<std::int64_t>>, Group> groups_;
};

class Interpreter::Member final : public Communicator {
 public:
  Member(Exchange& exchange, std::size_t rank) : exchange_(exchange), rank_(rank) {}

  Handle prepare(const Transfer& transfer, const TransferBuffers& buffers, bool) override {
    return exchange_.prepare(rank_, transfer, buffers);
  }
  void start(Handle transfer) override { exchange_.start(rank_, transfer); }
  bool test(Handle transfer) override { return exchange_.complete(rank_, transfer); }
  void wait(Handle transfer) override {
    if (!test(transfer)) {
      throw Error(ErrorCode::internal, fmt::format("rank {} waits where others have yet to run", rank_));
    }
  }

 private:
  Exchange& exchange_;
  std::size_t rank_;
};

Interpreter::Interpreter(const graph::Graph& graph, const partition::Partition& partition, const device::Device& device,
                         int threads, std::optional<Fault> fault, const plugins::Hooks* hooks)
    : exchange_(std::make_unique<Exchange>(partition.placements.mesh, fault)) {
  const std::int64_t ranks = partition.placements.mesh.ranks();
  decltype(partition::RankSettings::plan_hook) plan_hook;
  if (hooks != nullptr) {
    plan_hook = [hooks](const plan::HookGroup& group) { return hooks->ask(group); };
  }
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    programs_.push_back(partition::programs_of(
        graph, partition, {.device = device, .threads = threads, .rank = rank, .plan_hook = plan_hook}));
    members_.push_back(std::make_unique<Member>(*exchange_, static_cast<std::size_t>(rank)));
    executors_.push_back(std::make_unique<Executor>(programs_.back(), device, hooks));
    executors_.back()->bind(*members_.back());
  }
}

Interpreter::~Interpreter() = default;

std::size_t Interpreter::transfers(std::size_t rank) const noexcept {
  std::size_t count = 0;
  for (const partition::Program& program : programs_[rank].programs) {
    count += program.transfers.size();
  }
  return count;
}

void Interpreter::run(std::string_view function, std::int64_t rows, bool last, const device::Scalars& scalars) {
  run(executors_.front()->find(function, rows, last), {&scalars, 1});
}

void Interpreter::run(std::size_t program, std::span<const device::Scalars> scalars) {
  std::vector<std::size_t> at(ranks(), 0);
  for (bool done = false; !done;) {
    bool moved = false;
    done = true;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      const std::size_t end = programs_[rank].programs[program].instructions.size();
      if (at[rank] == end) {
        continue;
      }
      const std::size_t before = at[rank];
      at[rank] = executors_[rank]->advance(program, scalars, at[rank]);
      moved = moved || at[rank] != before;
      done = done && at[rank] == end;
    }
    if (!done && !moved) {
      refuse(program, at);
    }
  }
}

void Interpreter::refuse(std::size_t program, const std::vector<std::size_t>& at) const {
  std::string waiting;
  for (std::size_t rank = 0; rank < executors_.size(); ++rank) {
    const partition::Program& of_rank = programs_[rank].programs[program];
    if (at[rank] < of_rank.instructions.size()) {
      waiting += fmt::format("; rank {} waits for {}", rank, of_rank.instructions[at[rank]].name);
    }
  }
  throw Error(ErrorCode::internal,
              fmt::format("function {}: no rank can go on{}", programs_.front().programs[program].function, waiting));
}

}  // namespace shardrun::runtime
