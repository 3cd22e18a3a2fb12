#include "core/train/rank_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/partition/agreements.h"

namespace shardrun::train {
namespace {

using std::chrono::nanoseconds;

/// Seconds that operations wait beyond [job] timeout. The launcher, which can name a silent rank, must notice the
/// silence before operations of other ranks time out. Heartbeats come once a second.
constexpr double silence_margin_s = 2;

}  // namespace

RankLink::RankLink(const job::Job& job, compile::Compiled& compiled, launch::Rank* rank,
                   std::function<int()> stop_signal)
    : job_(job), compiled_(compiled), rank_(rank), own_stop_signal_(std::move(stop_signal)) {
  if (rank != nullptr) {
    record_.emplace(new_flight_path(job.output, rank->rank()), rank->rank());
    now_at("comparing plans", 0);
  }
}

RankLink::~RankLink() {
  if (rank_ != nullptr) {
    rank_->on_abort({});  // because the callback uses members of this object
  }
  collectives_.reset();
  // Open transports call their host, which is this object. Their threads may still use the memory that they know, so
  // `memory_` is destroyed after them.
  compiled_.transports.transports.clear();
}

launch::Rank::Deadline RankLink::deadline() const {
  return launch::Rank::Clock::now() +
         std::chrono::duration_cast<launch::Rank::Clock::duration>(std::chrono::duration<double>(job_.timeout));
}

std::string RankLink::store_get(const std::string& key, std::int64_t deadline) {
  const launch::Rank::Deadline latest = this->deadline() + std::chrono::hours(1);
  const launch::Rank::Deadline asked{nanoseconds(deadline)};
  return rank_->get(key, std::min(asked, latest));
}

void RankLink::check_data() {
  now_at("comparing data", 0);
  if (!compiled_.saved_state.fingerprint.empty()) {
    check_file("state", "[iterate] from", job_.iterate.from, compiled_.saved_state.fingerprint);
  }
  if (compiled_.resumed != nullptr) {
    check_file("resumed", "[checkpoint] resume", compiled_.resumed->path(), to_string(compiled_.resumed->hash()));
  }
  if (compiled_.weights != nullptr) {
    check_file("weights", job_.weights.empty() ? "[job] checkpoint" : "[model] from", compiled_.weights->source().path,
               compiled_.weights->fingerprint());
  }
  if (compiled_.dataset == nullptr) {
    return;
  }
  const std::vector<std::filesystem::path> files = data::data_files(job_);
  const std::vector<std::string> fingerprints = compiled_.dataset->fingerprints();
  for (std::size_t i = 0; i < fingerprints.size(); ++i) {
    check_file(fmt::format("data/{}", i), job::applies_model(job_) ? "[infer] from" : "[data]", files[i],
               fingerprints[i]);
  }
}

void RankLink::check_file(const std::string& key, std::string_view setting, const std::filesystem::path& file,
                          const std::string& fingerprint) {
  if (rank() == 0) {
    publish(key, fingerprint);
  } else if (const std::string first = published(key, launch::Rank::no_deadline); first != fingerprint) {
    throw Error(ErrorCode::io, fmt::format("{} {}: rank {} has another file here ({}) than rank 0 ({}): give all hosts "
                                           "the same data",
                                           setting, file.string(), rank(), fingerprint, first));
  }
}

void RankLink::check_plan() {
  now_at("comparing plans", 0);
  if (compiled_.engine != nullptr) {
    return check_made("set of parameters", fmt::format("engine {}", job_.engine.name), to_string(*compiled_.engine));
  }
  check_made("graph", fmt::format("model {}", job_.model.name), to_string(compiled_.graph));
  check_made("plan", fmt::format("strategy {}", job_.strategy.name), to_string(compiled_.plan));
}

void RankLink::check_made(const std::string& what, std::string_view maker, std::string_view text) {
  const std::string mine = fmt::format("{:016x}", hash_name(text));
  if (rank() == 0) {
    publish(what, mine);
  } else if (const std::string first = published(what, launch::Rank::no_deadline); first != mine) {
    throw Error(ErrorCode::internal, fmt::format("{} made another {} on rank {} ({}) than on rank 0 ({}): a {} must "
                                                 "follow from the job alone",
                                                 maker, what, rank(), mine, first, what));
  }
}

void RankLink::check_hooks() {
  const mesh::Mesh& mesh = compiled_.partition.placements.mesh;
  for (const partition::PlacedHook& hook : compiled_.partition.placements.hooks) {
    const std::string mine = fmt::format("{:016x}", hash_name(partition::hook_text(compiled_.programs, hook.kind)));
    const std::int64_t first = mesh::line_through(mesh, hook.axis, rank()).front();
    const std::string key = fmt::format("{} {}", to_string(hook.kind), first);
    if (first == rank()) {
      publish(key, mine);
    } else if (const std::string other = published(key, launch::Rank::no_deadline); other != mine) {
      throw Error(ErrorCode::internal,
                  fmt::format("strategy {} plans something else for its hook {} on rank {} ({}) than on rank {} ({}): "
                              "that must follow from the job and the group alone",
                              job_.strategy.name, to_string(hook.kind), rank(), mine, first, other));
    }
  }
}

void RankLink::connect(runtime::Executor& executor) {
  executor_ = &executor;
  if (rank_ == nullptr) {
    return;
  }
  memory_ = executor.transport_memory();
  now_at("waiting for ranks that load their data", 0);
  barrier();
  now_at("connecting", 0);
  const launch::RankContext& context = rank_->context();
  const std::int64_t latest = std::chrono::duration_cast<nanoseconds>(deadline().time_since_epoch()).count();
  for (plugins::Transport& transport : compiled_.transports.transports) {
    transport.open({.rank = static_cast<std::uint32_t>(context.rank),
                    .world_size = static_cast<std::uint32_t>(context.world_size),
                    .local_rank = static_cast<std::uint32_t>(context.local_rank),
                    .local_world_size = static_cast<std::uint32_t>(context.local_world_size),
                    .job = context.run,
                    .address = rank_->own_address(),
                    .deadline = sdk::Deadline::from_border(latest),
                    .machines = context.machines,
                    .secret = rank_->key_for("transport/" + transport.manifest().name)},
                   *this);
  }
  collectives_ =
      std::make_unique<runtime::Collectives>(compiled_.transports, compiled_.partition, context.rank, *compiled_.device,
                                             memory_, job_.timeout + silence_margin_s, *record_);
  rank_->on_abort([this](const std::string& reason) { collectives_->abort(reason); });
  executor.bind(*collectives_);
  if (compiled_.programs.has(partition::agreement_function)) {
    agreement_ = executor.find(partition::agreement_function, 0);
  }
}

std::int32_t RankLink::agree(std::int32_t value, std::int32_t most) {
  std::int32_t agreed = value;
  if (agreement_) {
    executor_->agree(*agreement_, {&agreed, 1});
  }
  if (agreed < value || agreed > most) {
    refuse_changed(agreed, fmt::format("{} to {}", value, most));
  }
  return agreed;
}

void RankLink::refuse_changed(std::int32_t agreed, std::string_view possible) const {
  std::string names;
  for (const job::Chosen& transport : job_.transports) {
    names += (names.empty() ? "" : ", ") + transport.name;
  }
  throw Error(ErrorCode::transport,
              fmt::format("a transport ({}) changed data: the largest of the ranks' numbers came out as {} on rank {}, "
                          "and only {} is possible. Run the job again, and without this machine or link if it happens "
                          "again",
                          names, agreed, rank(), possible));
}

/// A request that any rank has received counts for all, because otherwise some ranks would wait for others that pause.
/// The largest number wins: a stop before a checkpoint, a checkpoint before a pause, and a pause before a report. The
/// other requests are made again after the next step.
std::int32_t RankLink::number_of(const Wish& wish) const {
  const int heard =
      std::max({wish.signal, rank_ != nullptr ? rank_->stop_signal() : 0, own_stop_signal_ ? own_stop_signal_() : 0});
  return 8 * heard + (wish.save ? 4 : 0) + (rank_ != nullptr && rank_->pause_asked() ? 2 : 0) + (wish.report ? 1 : 0);
}

Wish RankLink::wish_of(std::int32_t agreed) const {
  constexpr int signals[] = {0, SIGHUP, SIGINT, SIGUSR1, SIGTERM, SIGPIPE, time_limit_signal};
  if (agreed < 0 || std::ranges::find(signals, agreed / 8) == std::end(signals)) {
    refuse_changed(agreed, "eight times the number of a signal that stops a job, and up to 7 more,");
  }
  return {.signal = agreed / 8,
          .save = agreed / 4 % 2 == 1,
          .pause = agreed < 8 && agreed / 2 % 2 == 1,
          .report = agreed % 2 == 1};
}

Wish RankLink::agree_on_stop(Wish wish) {
  const Wish all = wish_of(agree(number_of(wish), std::numeric_limits<std::int32_t>::max()));
  if (all.pause) {
    pause();
  }
  return all;
}

void RankLink::LateAgreement::give() const noexcept {
  const std::int32_t own = link->number_of(due.wish());
  std::memcpy(number, &own, sizeof(own));
}

void RankLink::begin_agreement(std::int64_t step, const Due& due) {
  const auto turn = static_cast<std::size_t>(step % 2);
  LateAgreement& late = late_[turn];
  late = {.link = this, .due = due, .number = executor_->kept(first_slot + turn).data(), .agreed = {}};
  if (agreement_) {
    executor_->agree_later(
        *agreement_, first_slot + turn, [](void* each) { static_cast<const LateAgreement*>(each)->give(); }, &late);
    late.agreed = executor_->mark();
  }
}

Wish RankLink::end_agreement(std::int64_t step) {
  const LateAgreement& late = late_[static_cast<std::size_t>(step % 2)];
  if (agreement_) {
    executor_->reach(late.agreed);
  } else {
    late.give();
  }
  std::int32_t agreed = 0;
  std::memcpy(&agreed, late.number, sizeof(agreed));
  return wish_of(agreed);
}

void RankLink::barrier() {
  const std::string key = fmt::format("barrier/{}", barriers_++);
  if (rank() != 0) {
    publish(fmt::format("{}/{}", key, rank()), "");
    (void)published(key, launch::Rank::no_deadline);
    return;
  }
  for (int other = 1; other < world_size(); ++other) {
    (void)published(fmt::format("{}/{}", key, other), launch::Rank::no_deadline);
  }
  publish(key, "");
}

/// Broadcasts along one mesh axis after the other, from the member with the first rank's coordinate, which is not 0
/// with some [mesh] order. Groups without the data broadcast what they have; a later axis overwrites it.
void RankLink::broadcast(std::span<std::byte> bytes) {
  const mesh::Mesh& mesh = compiled_.partition.placements.mesh;
  const mesh::Coordinates at = mesh::coordinates_of(mesh, rank());
  const mesh::Coordinates root = mesh::coordinates_of(mesh, 0);
  for (const mesh::AxisId axis : mesh.axes.ids()) {
    if (mesh.size(axis) == 1 || bytes.empty()) {
      continue;
    }
    const sdk::Buffer buffer{.data = bytes.data(), .bytes = bytes.size()};
    sdk::OpSpec op;
    op.opcode = SR_OP_BROADCAST;
    op.dtype = SR_DTYPE_U8;
    op.count = bytes.size();
    op.flags = SR_OP_FLAG_BLOCKING;
    op.peer = static_cast<std::uint32_t>(root[axis]);
    if (at[axis] == root[axis]) {
      op.send = buffer;
    }
    op.recv = buffer;
    op.label = "broadcast";
    try {
      collectives_->finish_once(collectives_->start_once(collectives_->group_along(axis), std::move(op)));
    } catch (...) {
      collectives_->abort("a broadcast has failed");
      collectives_->drop_once();  // because the caller may free the bytes
      throw;
    }
  }
}

std::string RankLink::made_of_all(std::string_view name, const std::string& given,
                                  const std::function<std::string(const std::vector<std::string>& of_ranks)>& make) {
  const launch::Rank::Deadline latest = deadline();
  if (rank() != 0) {
    publish(fmt::format("{}/{}", name, rank()), given);
    return published(std::string(name), latest);
  }
  std::vector<std::string> of_ranks = {given};
  for (int other = 1; other < world_size(); ++other) {
    of_ranks.push_back(published(fmt::format("{}/{}", name, other), latest));
  }
  std::string made = make(of_ranks);
  publish(std::string(name), made);
  return made;
}

std::uint64_t RankLink::wire_bytes() const {
  std::uint64_t bytes = 0;
  for (const plugins::Transport& transport : compiled_.transports.transports) {
    bytes += transport.wire_bytes();
  }
  return bytes;
}

sdk::Arrivals RankLink::arrivals(int from) const {
  sdk::Arrivals sum;
  const std::vector<std::uint32_t>& machines = rank_->context().machines;
  const auto machine_of = [&](int each) { return machines.empty() ? 0 : machines[static_cast<std::size_t>(each)]; };
  if (std::ranges::count(machines, machine_of(from)) < std::ssize(machines) && machine_of(from) == machine_of(rank())) {
    return sum;
  }
  for (const plugins::Transport& transport : compiled_.transports.transports) {
    const sdk::Arrivals arrivals = transport.arrivals(static_cast<std::uint32_t>(from));
    sum.bytes += arrivals.bytes;
    sum.nanoseconds += arrivals.nanoseconds;
  }
  return sum;
}

}  // namespace shardrun::train
