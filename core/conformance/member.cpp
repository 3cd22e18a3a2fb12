#include "core/conformance/member.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/conformance/conformance.h"

namespace shardrun::conformance {
namespace {

constexpr std::size_t arena_bytes = std::size_t{64} << 20U;

/// The options whose settings have the form "PREFIXkey=value", where key has no dot.
OptionValues options_among(const std::vector<std::string>& settings, const std::string& prefix,
                           const std::vector<OptionSpec>& specs) {
  OptionValues values;
  for (const std::string& setting : settings) {
    const std::string key = setting.substr(0, setting.find('='));
    if (key.starts_with(prefix) && key.find('.', prefix.size()) == std::string::npos && key != setting) {
      const std::string name = key.substr(prefix.size());
      values.set(name, read_option(specs, name, setting.substr(key.size() + 1)));
    }
  }
  return values;
}

/// A secret that is equal on all members of a check.
std::array<std::uint8_t, 32> made_up_secret() {
  std::array<std::uint8_t, 32> secret = {};
  secret.fill(0x5A);
  return secret;
}

}  // namespace

Member::Member(Store& store, const plugins::Directories& directories, const std::string& transport, std::uint32_t rank,
               std::uint32_t world_size, const std::vector<std::string>& settings)
    : Peer(store, rank),
      world_size_(world_size),
      arena_(arena_bytes),
      host_(store, "transport"),
      transport_(plugins::Transport::load(directories, transport)) {
  transport_.configure({.options = options_among(settings, "", transport_.options()),
                        .world_size = world_size,
                        .options_of = [&](const std::string& wrapped) {
                          return options_among(settings, wrapped + ".",
                                               plugins::Transport::load(directories, wrapped).options());
                        }});
  if (!transport_.props().moves(SR_MEMORY_HOST)) {
    std::string opening = "it opens here";
    try {
      host_.open(transport_, rank, world_size);
    } catch (const Error& error) {
      opening = fmt::format("nor does it open here: {}", error.message());
    }
    meet("opened", world_size);  // a rank that ended early would cut off ranks that are still opening
    throw Error(ErrorCode::transport, fmt::format("{}; {}", only_host_memory, opening));
  }
  host_.open(transport_, rank, world_size);
  registration_ = transport_.register_memory(arena_.data(), arena_.bytes(), arena_.descriptor());
}

void StoreHost::open(plugins::Transport& transport, std::uint32_t rank, std::uint32_t n) {
  transport.open({.rank = rank,
                  .world_size = n,
                  .local_rank = rank,
                  .local_world_size = n,
                  .job = fmt::format("conformance{}of{}", getppid(), n),
                  .address = "127.0.0.1",
                  .deadline = sdk::Deadline::from_border(after(timeout_s)),
                  .secret = made_up_secret()},
                 *this);
}

std::string StoreHost::store_get(const std::string& key, std::int64_t deadline) {
  std::optional<std::string> value = store_.get(place_ + "/" + key, deadline);
  if (!value) {
    throw Error(store_.aborted() ? ErrorCode::aborted : ErrorCode::timeout, fmt::format("nobody has set '{}'", key));
  }
  return std::move(*value);
}

MemberGroup Member::connect(const std::string& name, std::uint64_t id, const std::vector<std::uint32_t>& ranks) {
  const auto place = static_cast<std::uint32_t>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
  return {transport_.group({.rank = place,
                            .members = ranks,
                            .name = name,
                            .id = id,
                            .deadline = sdk::Deadline::from_border(after(timeout_s))}),
          place, static_cast<std::uint32_t>(ranks.size())};
}

MemberGroup& Member::first(std::uint32_t n) {
  const auto known = first_.find(n);
  if (known != first_.end()) {
    return known->second;
  }
  std::vector<std::uint32_t> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  return first_.emplace(n, connect(fmt::format("first {}", n), n, ranks)).first->second;
}

sdk::Buffer Member::registered(std::size_t bytes) {
  const std::size_t at = (used_ + 63) / 64 * 64;
  if (at + bytes > arena_bytes) {
    throw Error(ErrorCode::internal, "a case needs more registered memory than there is");
  }
  used_ = at + bytes;
  return {.data = arena_.data() + at, .bytes = bytes, .registration = registration_};
}

ErrorCode failure_of(plugins::TransportOp& op, const std::string& what) {
  return code_of(what, [&] {
    require(op.wait(after(failure_limit_s)),
            fmt::format("{} was still under way {} s after it had to end", what, failure_limit_s));
  });
}

ErrorCode polled_failure_of(plugins::TransportOp& op, const std::string& what) {
  return code_of(what, [&] {
    const std::int64_t latest = after(failure_limit_s);
    while (!op.test()) {
      require(plugins::transport_clock() < latest,
              fmt::format("{} was polled and still under way {} s after it had to end", what, failure_limit_s));
      std::this_thread::yield();
    }
  });
}

std::vector<Case> transport_cases() {
  std::vector<Case> cases;
  add_collective_cases(cases);
  add_group_cases(cases);
  add_message_cases(cases);
  add_mismatch_cases(cases);
  add_failure_cases(cases);
  add_awaited_cases(cases);
  add_memory_cases(cases);
  add_queue_cases(cases);
  add_restart_cases(cases);
  add_death_cases(cases);
  return cases;
}

namespace {

const RegisterKind transports(
    {plugins::PluginKind::transport, [] { return infos_of(transport_cases()); },
     [](Store& store, const MemberWords& words, std::string& before) {
       if (plugins::Transport::load(words.directories, words.plugin).props().has(SR_TRANSPORT_OWN_LAUNCHER)) {
         throw Error(ErrorCode::transport, only_own_launcher);
       }
       go_through(transport_cases(),
                  Member(store, words.directories, words.plugin, words.rank, words.ranks, words.settings), words,
                  before);
     }});

}  // namespace
}  // namespace shardrun::conformance
