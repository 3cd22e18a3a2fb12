#include "core/run/hosted.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/process.h"
#include "core/base/standard_error.h"
#include "core/base/stop.h"
#include "core/base/text.h"
#include "core/compile/compile.h"
#include "core/launch/process.h"
#include "core/launch/signals.h"
#include "core/launch/store_host.h"
#include "core/metrics/locked_run_folder.h"
#include "core/run/local_display.h"
#include "core/run/prepare.h"
#include "core/run/rank_process.h"
#include "core/run/rank_reports.h"
#include "core/run/rendezvous.h"
#include "core/run/requirements.h"
#include "core/run/run.h"
#include "core/run/served_numbers.h"

namespace shardrun::run {
namespace {

/// The time from an abort until a process is ended. Rank 0's is shorter, because it writes the summary afterwards.
constexpr std::chrono::milliseconds grace_of_first{2000};
constexpr std::chrono::milliseconds grace_of_others{5000};

/// The time limit from connecting to a rank's hello is a quarter of [job] timeout, but at least this, because a hello
/// takes a few round trips.
constexpr std::chrono::milliseconds shortest_hello{5000};

/// Rank 0 must name a silent rank before that rank considers rank 0 lost.
constexpr std::chrono::milliseconds silence_margin{3000};

/// How long a rank that cannot begin waits for others, to tell them. It then ends, which tells its launcher. It is less
/// than the time after which ranks say for whom they wait: such a rank says only what is wrong.
constexpr std::chrono::seconds longest_refusal{4};

void require_whole_world(const job::Job& job, const launch::World& world) {
  if (job.ranks != world.size) {
    throw Error(
        ErrorCode::usage,
        fmt::format("{}: [job] ranks = {}, and {} started {}, of which this is rank {}: start as many "
                    "as the job has ranks, or set ranks; a process that is started once, by itself, starts them all "
                    "with '--launch here'",
                    job.where("job", "ranks"), job.ranks, world.launcher, counted(world.size, "process", "processes"),
                    world.rank));
  }
}

/// SHARDRUN_ADDRESS, resolved; "" if it is not set.
std::string own_address() {
  const char* const given = launch::own_variable("SHARDRUN_ADDRESS");
  return given != nullptr && *given != '\0' ? launch::own_of("SHARDRUN_ADDRESS", given) : "";
}

/// Checks everything that can be checked before ranks wait for each other. The data are opened here, and checked by one
/// rank of each machine.
compile::Compiled check_before(const job::Job& job, const launch::World& world, const RunSettings& settings) {
  std::optional<LocalDisplay> display;
  if (world.rank == 0) {
    display.emplace(job, settings);
  }
  const auto now_at = [&](std::string_view activity) {
    if (display) {
      display->now_at(activity);
    }
  };
  Prepared prepared = prepare(job, {.rank = world.rank,
                                    .ranks_here = ranks_here(world),
                                    .replaces = settings.replaces,
                                    .replaces_file = settings.replaces_file,
                                    .restarted_by = world.launcher,
                                    .now_at = now_at});
  if (display) {
    for (const std::string& notice : prepared.notices) {
      display->line(notice);
    }
  }
  now_at("reading data");
  if (world.local_rank.value_or(0) == 0) {  // without local ranks, each rank may be the only one on its machine
    check_data(job, prepared.compiled);
  }
  return std::move(prepared.compiled);
}

std::string name_of_run() {
  const launch::Token random = launch::random_token();
  std::string name;
  for (std::size_t i = 0; i < 8; ++i) {
    name += fmt::format("{:02x}", random[i]);
  }
  return name;
}

/// The process of the first rank, which also does the launcher's work.
class First {
 public:
  First(const job::Job& job, const launch::World& world, const RunSettings& settings)
      : common_(job), world_(world), settings_(settings), served_(job, settings), run_(job, settings) {
    settings_.numbers = served_.numbers();
  }

  First(const First&) = delete;
  First& operator=(const First&) = delete;
  ~First() {
    if (settings_.on_stop) {
      settings_.on_stop({});
    }
  }

  /// Begins to listen, removes an older run's files, and returns the address.
  launch::Invitation host(const Rendezvous& rendezvous, const checkpoint::OpenCheckpoint* resumed) {
    launch::Invitation invitation = invitation_of(rendezvous, world_);
    launch::HostSettings settings =
        host_settings(world_, invitation, silence_of(common_), job::canonical_text(common_));
    settings.stop_signal = settings_.stop_signal;
    settings.has_begun = [this] { return reports_->has_begun(); };
    settings.on_message = [this](const launch::RankMessage& message) { reports_->take(message); };
    settings.on_log = [this](std::string_view line) { reports_->log(line); };
    settings.on_notice = [this](std::string_view line) { reports_->notice(line); };
    settings.last_resort = [this](const launch::LaunchResult& result) { give_up(result); };
    host_.emplace(std::move(settings));
    const std::string older = run_.begin(resumed);
    reports_.emplace(run_.job(), settings_, 1,
                     resumed == nullptr ? checkpoint::first_step(common_) : resumed->manifest().step);
    reports_->tell_older(older);
    if (const std::string notice = served_.notice(); !notice.empty()) {
      reports_->notice(notice);
    }
    host_->start();
    invitation.master.port = host_->port();
    return invitation;
  }

  /// Runs this rank and the host to their end. REQUIRES: the other ranks know the invitation.
  metrics::Summary run(const launch::Invitation& invitation, compile::Compiled compiled) {
    host_->expect_ranks();
    metrics::Summary summary;
    {
      const metrics::Leftovers leftovers(run_.locked_folder());
      const int code = run_as_rank(common_, hosted_context(world_, invitation, silence_of(common_)), settings_.profile,
                                   {.folder = run_.locked_folder().root(),
                                    .compiled = std::move(compiled),
                                    .on_join = [this] { tell_stop(); },
                                    .stop_signal = settings_.stop_signal,
                                    .ends_by = settings_.ends_by,
                                    .output = run_.locked_folder().path()});
      launch::LaunchResult result = host_->wait();
      result.exit_code = result.exit_code == 0 ? code : result.exit_code;
      summary = reports_->merge(result, run_.job().output);
    }
    run_.end(summary);
    reports_->finish_screen(summary);
    return summary;
  }

 private:
  void tell_stop() {
    if (settings_.on_stop) {
      settings_.on_stop([this](int signal) {
        reports_->notice(reports_->has_begun() ? launch::stop_notice(signal) : launch::stop_notice(signal, "stopping"));
      });
    }
  }

  /// Ends the process. Called on the host's thread while this rank hangs elsewhere.
  [[noreturn]] void give_up(const launch::LaunchResult& result) {
    metrics::Summary summary = reports_->merge(result, run_.job().output);
    run_.write_summary(summary);
    write_to_standard_error(fmt::format("shardrun: {}\n", summary.error), Patience::brief);
    end_process(summary.exit_code == 0 ? 1 : summary.exit_code);
  }

  const job::Job& common_;  ///< the same on all ranks
  const launch::World& world_;
  RunSettings settings_;
  ServedNumbers served_;
  Run run_;  ///< in the folder that this rank has chosen for all ranks
  std::optional<RankReports> reports_;
  std::optional<launch::StoreHost> host_;  // destroyed first, because it calls the other members
};

/// Finds out how ranks find the first one. Throws what all ranks find alike, so that none waits for another.
Rendezvous rendezvous_in(const job::Job& job, const Messengers& messengers, const launch::World& world) {
  require_whole_world(job, world);
  static_cast<void>(own_address());  // refuses an invalid address first
  return rendezvous_of(messengers, world);
}

Error refusal_of(const std::exception& why) {
  const auto* const known = dynamic_cast<const Error*>(&why);
  return known != nullptr ? *known : Error(ErrorCode::internal, fmt::format("unexpected error: {}", why.what()));
}

std::string told(const Error& refusal) { return fmt::format("shardrun: {}\n", printable_lines(refusal.message())); }

/// Ends this process after `longest_refusal`, in whatever it waits, unless the result is destroyed before.
std::jthread end_later(int code, const std::string& last_words) {
  return std::jthread([code, last_words](const std::stop_token& called_off) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any never;
    never.wait_for(lock, called_off, longest_refusal, [] { return false; });
    if (!called_off.stop_requested()) {
      write_to_standard_error(last_words, Patience::brief);
      end_process(code);
    }
  });
}

/// Meets the other ranks for no more than telling them that this rank, the first, cannot begin. They would wait for it.
void refuse_all(const job::Job& job, const launch::World& world, Rendezvous& rendezvous, const Error& refusal,
                int code) {
  std::jthread end_in_messenger = end_later(code, told(refusal));
  launch::Invitation invitation = invitation_of(rendezvous, world);
  launch::HostSettings hosting = host_settings(world, invitation, silence_of(job), job::canonical_text(job));
  hosting.grace = longest_refusal;
  std::optional<launch::StoreHost> host;
  try {
    host.emplace(std::move(hosting));
  } catch (const Error&) {
    static_cast<void>(invite(rendezvous, world, {.master = {.address = "none"}}));
    return;
  }
  host->start();
  invitation.master.port = host->port();
  const bool is_known = invite(rendezvous, world, invitation);
  end_in_messenger = {};
  if (is_known) {
    const launch::RankContext context = hosted_context(world, invitation, silence_of(job));
    static_cast<void>(run_as_rank(job, context, false, {.refusal = &refusal}));
    static_cast<void>(host->wait());
  }
}

}  // namespace

std::int64_t ranks_here(const launch::World& world) {
  if (world.local_size) {
    return *world.local_size;
  }
  const bool is_one_machine =
      world.is_by_variables && world.master &&
      launch::is_loopback(launch::resolve_for_others("MASTER_ADDR", world.master->address).front());
  return is_one_machine ? world.size : 0;
}

launch::HostSettings host_settings(const launch::World& world, const launch::Invitation& invitation,
                                   std::chrono::milliseconds silence, std::string job) {
  return {.address = invitation.master.address,
          .port = invitation.master.port,
          .ranks = world.size,
          .token = invitation.token,
          .job = std::move(job),
          .run = name_of_run(),
          .heartbeat_timeout = silence,
          .grace = grace_of_first,
          .stranger_timeout = std::max(shortest_hello, silence / 4)};
}

launch::RankContext hosted_context(const launch::World& world, const launch::Invitation& invitation,
                                   std::chrono::milliseconds silence) {
  const bool watches_first = world.rank != 0 && silence.count() > 0;
  return {.rank = world.rank,
          .world_size = world.size,
          .local_rank = world.local_rank.value_or(0),
          .local_world_size = world.local_size.value_or(0),
          .address = invitation.master.address,
          .port = invitation.master.port,
          .token = invitation.token,
          .heartbeat = std::clamp(silence / 4, std::chrono::milliseconds(1), std::chrono::milliseconds(1000)),
          .own_address = own_address(),
          .is_hosted = true,
          .silence = watches_first ? silence + silence_margin : std::chrono::milliseconds(0),
          .grace = world.rank == 0 ? std::chrono::milliseconds(0) : grace_of_others};
}

void raise_limits(const launch::World& world) {
  static_cast<void>(launch::raise_descriptor_limit(static_cast<std::uint64_t>(world.size) + launch::other_descriptors));
}

int run_hosted_first(const job::Job& job, const launch::World& world, const RunSettings& settings,
                     const std::function<int(const metrics::Summary&)>& tell) {
  raise_limits(world);
  const Messengers messengers = messengers_of(job);
  Rendezvous rendezvous = rendezvous_in(job, messengers, world);
  compile::Compiled compiled;
  std::optional<First> first;
  launch::Invitation invitation;
  const auto refuse = [&](const Error& refusal, int code) {
    first.reset();  // its port is needed
    refuse_all(job, world, rendezvous, refusal, code);
  };
  try {
    compiled = check_before(job, world, settings);
    first.emplace(job, world, settings);
    invitation = first->host(rendezvous, compiled.resumed.get());
  } catch (const Stopped& stopped) {
    const metrics::Summary summary = stopped_early(job, stopped.signal(), "before the ranks met");
    refuse(Error(ErrorCode::aborted, summary.error), summary.exit_code);
    return tell(summary);
  } catch (const std::exception& why) {
    const Error refusal = refusal_of(why);
    refuse(refusal, exit_code(refusal.code()));
    throw;
  }
  if (!invite(rendezvous, world, invitation)) {
    throw no_place(messengers, world);
  }
  return tell(first->run(invitation, std::move(compiled)));
}

int run_hosted_other(const job::Job& job, const launch::World& world, const RunSettings& settings,
                     const std::function<void()>& on_join) {
  const Messengers messengers = messengers_of(job);
  Rendezvous rendezvous = rendezvous_in(job, messengers, world);
  compile::Compiled compiled;
  std::optional<Error> refusal;
  std::jthread end_without_first;
  try {
    compiled = check_before(job, world, settings);
  } catch (const std::exception& why) {
    refusal = refusal_of(why);
  }
  if (refusal) {  // told at once, because the first rank may never come
    write_to_standard_error(told(*refusal));
    end_without_first = end_later(exit_code(refusal->code()), "");
  }
  const launch::Invitation invitation = hear_invitation(messengers, rendezvous, world);
  if (invitation.master.port == 0) {
    throw Error(ErrorCode::io, fmt::format("rank {}: rank 0 could not begin, and says why", world.rank));
  }
  const int code = run_as_rank(job, hosted_context(world, invitation, silence_of(job)), settings.profile,
                               {.compiled = std::move(compiled),
                                .on_join = on_join,
                                .stop_signal = settings.stop_signal,
                                .refusal = refusal ? &*refusal : nullptr});
  return refusal ? exit_code(refusal->code()) : code;
}

}  // namespace shardrun::run
