#include "core/conformance/member.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/conformance/conformance.h"

namespace shardrun::conformance {
namespace {

constexpr std::size_t arena_bytes = std::size_t{64} << 20U;

/// The value in "PREFIXkey=value", for keys without a dot.
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

/// All members of a check have this secret.
std::array<std::uint8_t, 32> made_up_secret() {
  std::array<std::uint8_t, 32> secret = {};
  secret.fill(0x5A);
  return secret;
}

}  // namespace

Member::Arena::Arena() : descriptor(memfd_create("conformance arena", MFD_CLOEXEC)), data(nullptr) {
  if (descriptor < 0 || ftruncate(descriptor, arena_bytes) != 0) {
    throw Error(ErrorCode::io, fmt::format("cannot make memory: {}", std::strerror(errno)));
  }
  data = static_cast<std::byte*>(mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0));
}

Member::Arena::~Arena() {
  munmap(data, arena_bytes);
  close(descriptor);
}

Member::Member(Store& store, const plugins::Directories& directories, const std::string& transport, std::uint32_t rank,
               std::uint32_t world_size, const std::vector<std::string>& settings)
    : Peer(store, rank), world_size_(world_size), transport_(plugins::Transport::load(directories, transport)) {
  transport_.configure({.options = options_among(settings, "", transport_.options()),
                        .world_size = world_size,
                        .options_of = [&](const std::string& wrapped) {
                          return options_among(settings, wrapped + ".",
                                               plugins::Transport::load(directories, wrapped).options());
                        }});
  if (!transport_.props().moves(SR_MEMORY_HOST)) {
    std::string opening = "it opens here";
    try {
      open();
    } catch (const Error& error) {
      opening = fmt::format("nor does it open here: {}", error.message());
    }
    meet("opened", world_size);  // the first that ends would cut off those that still open
    throw Error(ErrorCode::transport, fmt::format("{}; {}", only_host_memory, opening));
  }
  open();
  registration_ = transport_.register_memory(arena_.data, arena_bytes, arena_.descriptor);
}

Member::~Member() = default;

void Member::open() {
  transport_.open({.rank = rank(),
                   .world_size = world_size_,
                   .local_rank = rank(),
                   .local_world_size = world_size_,
                   .job = fmt::format("conformance{}", getppid()),
                   .address = "127.0.0.1",
                   .deadline = after(timeout_s),
                   .secret = made_up_secret()},
                  *this);
}

std::string Member::store_get(const std::string& key, std::int64_t deadline) {
  std::optional<std::string> value = store().get("transport/" + key, deadline);
  if (!value) {
    throw Error(store().aborted() ? ErrorCode::aborted : ErrorCode::timeout, fmt::format("nobody has set '{}'", key));
  }
  return std::move(*value);
}

MemberGroup Member::connect(const std::string& name, std::uint64_t id, const std::vector<std::uint32_t>& ranks) {
  const auto place = static_cast<std::uint32_t>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
  return {transport_.group({.rank = place, .members = ranks, .name = name, .id = id, .deadline = after(timeout_s)}),
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
  return {.data = arena_.data + at, .bytes = bytes, .registration = registration_};
}

}  // namespace shardrun::conformance
