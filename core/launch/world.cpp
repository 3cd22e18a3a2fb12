#include "core/launch/world.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <system_error>

#include "core/base/error.h"
#include "core/files/descriptor.h"

namespace shardrun::launch {
namespace {

constexpr int most_ranks = 1 << 20;

Error senseless_world(const std::string& what) {
  return Error(
      ErrorCode::usage,
      fmt::format("this process was started as one of several ranks, but {}; a process that is started once, by "
                  "itself, starts all ranks of the job with '--launch here', whatever these variables say",
                  what));
}

/// Reads environment variables that belong together.
class Reader {
 public:
  explicit Reader(const Variables& variable) : variable_(variable) {}

  [[nodiscard]] bool has(const char* name) const {
    const char* const text = variable_(name);
    return text != nullptr && *text != '\0';
  }

  [[nodiscard]] std::string text(const char* name) const {
    if (!has(name)) {
      throw senseless_world(fmt::format("{} is not set", name));
    }
    return variable_(name);
  }

  [[nodiscard]] int number(const char* name, int lowest, int highest) const {
    const std::string given = text(name);
    int value = 0;
    const auto [end, failed] = std::from_chars(given.data(), given.data() + given.size(), value);
    if (failed != std::errc() || end != given.data() + given.size() || value < lowest || value > highest) {
      throw senseless_world(fmt::format("{} is '{}', not a number from {} to {}", name, given, lowest, highest));
    }
    return value;
  }

  /// The world as a launcher's variables describe it: rank and size, and the local ones if both are set.
  [[nodiscard]] World world(std::string launcher, const char* rank, const char* size, const char* local_rank,
                            const char* local_size) const {
    World world{.launcher = std::move(launcher)};
    world.size = number(size, 1, most_ranks);
    world.rank = number(rank, 0, world.size - 1);
    if (has(local_rank) && has(local_size)) {
      world.local_size = number(local_size, 1, world.size);
      world.local_rank = number(local_rank, 0, *world.local_size - 1);
    }
    return world;
  }

 private:
  const Variables& variable_;
};

/// The number of tasks in the Slurm step to which this process belongs; nothing if it belongs to none.
std::optional<int> tasks_of_slurm_step(const Reader& reader) {
  if (!reader.has("SLURM_PROCID") || !reader.has("SLURM_STEP_ID") || !reader.has("SLURM_STEP_NUM_TASKS")) {
    return std::nullopt;
  }
  return reader.number("SLURM_STEP_NUM_TASKS", 1, most_ranks);
}

/// Whether PMI's variables are those that Slurm sets for a step of one task. The only rank of an mpiexec whose helper
/// was started by srun has them, too, but it also has mpiexec's variables about its machine.
bool is_single_task_of_slurm(const Reader& reader) {
  return tasks_of_slurm_step(reader) == 1 && reader.number("PMI_SIZE", 1, most_ranks) == 1 &&
         !reader.has("MPI_LOCALNRANKS");
}

std::optional<World> world_without_master(const Reader& reader) {
  if (reader.has("OMPI_COMM_WORLD_RANK")) {
    return reader.world("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                        "OMPI_COMM_WORLD_LOCAL_SIZE");
  }
  // Checked before Slurm: mpiexec starts one helper per machine with srun, and ranks inherit the helper's variables.
  if (reader.has("PMI_RANK") && reader.has("PMI_SIZE") && !is_single_task_of_slurm(reader)) {
    return reader.world("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
  }
  // Interactive shells and batch scripts are steps of one task.
  if (tasks_of_slurm_step(reader).value_or(1) > 1) {
    return reader.world("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "", "");
  }
  return std::nullopt;
}

std::optional<World> world_by_variables(const Reader& reader) {
  if (!reader.has("RANK") || !reader.has("WORLD_SIZE")) {
    return std::nullopt;
  }
  World world = reader.world("whoever set RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  world.is_by_variables = true;
  return world;
}

/// Whether `inner` can be the processes of `outer`, or processes that a launcher in each of those has started.
bool fit_together(const World& outer, const World& inner) {
  if (outer.size == inner.size) {
    return outer.rank == inner.rank;
  }
  if (inner.local_size) {
    return inner.size == outer.size * *inner.local_size;
  }
  return outer.size > 1 && inner.size > outer.size && inner.size % outer.size == 0 &&
         inner.rank / (inner.size / outer.size) == outer.rank;
}

/// Chooses between a launcher's world, `outer`, and that of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, `inner`. If
/// their sizes differ, a second launcher in each process of the first has set these variables, like torchrun under
/// srun. Then `inner` counts. Throws Error{usage} if the worlds do not fit.
World nearer(World outer, World inner) {
  if (!fit_together(outer, inner)) {
    throw Error(
        ErrorCode::usage,
        fmt::format("{} started this process as rank {} of {}, and RANK and WORLD_SIZE say rank {} of {}: unset "
                    "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT if they are left over, or start the ranks by "
                    "one launcher",
                    outer.launcher, outer.rank, outer.size, inner.rank, inner.size));
  }
  return outer.size == inner.size ? std::move(outer) : std::move(inner);
}

std::string text_of(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text = {};
  const bool known = ::getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  return known ? text.data() : "";
}

/// The local address from which packets to `elsewhere` would be sent; "" if there is no route. Sends nothing.
std::string address_of_route(const sockaddr* elsewhere, socklen_t size) {
  const files::FileDescriptor socket(::socket(elsewhere->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own = {};
  socklen_t own_size = sizeof(own);
  const bool known = socket.is_open() && ::connect(socket.get(), elsewhere, size) == 0 &&
                     ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &own_size) == 0;
  return known ? text_of(reinterpret_cast<const sockaddr*>(&own), own_size) : "";
}

std::string address_of_route(const char* elsewhere) {
  sockaddr_in four = {};
  four.sin_family = AF_INET;
  four.sin_port = htons(9);
  if (::inet_pton(AF_INET, elsewhere, &four.sin_addr) == 1) {
    return address_of_route(reinterpret_cast<const sockaddr*>(&four), sizeof(four));
  }
  sockaddr_in6 six = {};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(9);
  ::inet_pton(AF_INET6, elsewhere, &six.sin6_addr);
  return address_of_route(reinterpret_cast<const sockaddr*>(&six), sizeof(six));
}

/// The addresses of this machine's interfaces that are up, IPv4 first. `of_links`: includes addresses that are valid
/// only on one link, such as "fe80::1%eth0".
std::vector<std::string> own_addresses(bool of_links = false) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) {
    return {};
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(all, ::freeifaddrs);
  std::vector<std::string> addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != family || (each->ifa_flags & IFF_UP) == 0) {
        continue;
      }
      const auto* const six = reinterpret_cast<const sockaddr_in6*>(each->ifa_addr);
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr) && !of_links) {
        continue;
      }
      addresses.push_back(text_of(each->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6)));
    }
  }
  return addresses;
}

int value_of_digit(char digit) {
  const std::string_view digits = "0123456789abcdef";
  const char lower = digit >= 'A' && digit <= 'F' ? static_cast<char>(digit - 'A' + 'a') : digit;
  const std::size_t at = digits.find(lower);
  return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

bool is_numeric(const std::string& address) {
  boost::system::error_code failed;
  boost::asio::ip::make_address(address, failed);
  return !failed;
}

/// An IPv4 address without its IPv6 mapping: "10.0.0.1" for "::ffff:10.0.0.1".
std::string unmapped(const std::string& numeric_address) {
  boost::system::error_code failed;
  const auto address = boost::asio::ip::make_address(numeric_address, failed);
  const bool is_mapped = !failed && address.is_v6() && address.to_v6().is_v4_mapped();
  return is_mapped ? make_address_v4(boost::asio::ip::v4_mapped, address.to_v6()).to_string() : numeric_address;
}

std::optional<Token> parse_token(std::string_view text) {
  Token token = {};
  if (text.size() != 2 * token.size()) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < token.size(); ++i) {
    const int high = value_of_digit(text[2 * i]);
    const int low = value_of_digit(text[2 * i + 1]);
    if (high < 0 || low < 0) {
      return std::nullopt;
    }
    token[i] = static_cast<std::uint8_t>(16 * high + low);
  }
  return token;
}

}  // namespace

const char* own_variable(const char* name) { return std::getenv(name); }

std::optional<World> world_of(const Variables& variable) {
  const Reader reader(variable);
  if (reader.has("SHARDRUN_LAUNCH_FD")) {
    return std::nullopt;
  }
  std::optional<World> world = world_without_master(reader);
  // Within another launcher's world, these variables may be left over, so they count only with a meeting place.
  if (!world || (reader.has("MASTER_ADDR") && reader.has("MASTER_PORT"))) {
    if (std::optional<World> inner = world_by_variables(reader)) {
      world = world ? nearer(*std::move(world), *std::move(inner)) : std::move(inner);
    }
  }
  if (!world) {
    return std::nullopt;
  }
  if (world->is_by_variables && world->size == 1 && !reader.has("MASTER_ADDR")) {
    return std::nullopt;  // a single rank needs no address
  }
  if (world->is_by_variables || (reader.has("MASTER_ADDR") && reader.has("MASTER_PORT"))) {
    world->master = {.address = reader.text("MASTER_ADDR"),
                     .port = static_cast<std::uint16_t>(reader.number("MASTER_PORT", 1, 65535))};
  }
  return world;
}

void require_whole_world(const Variables& variable) {
  const Reader reader(variable);
  if (world_of(variable) || reader.has("SHARDRUN_LAUNCH_FD") || !reader.has("MASTER_ADDR") ||
      !reader.has("MASTER_PORT")) {
    return;
  }
  if (reader.has("RANK") && !reader.has("WORLD_SIZE")) {
    throw senseless_world("MASTER_ADDR, MASTER_PORT and RANK are set and WORLD_SIZE is not");
  }
  if (reader.has("WORLD_SIZE") && reader.number("WORLD_SIZE", 1, most_ranks) > 1) {
    throw senseless_world("MASTER_ADDR, MASTER_PORT and WORLD_SIZE are set and RANK is not");
  }
}

std::optional<Token> token_of(const Variables& variable) {
  const char* const text = variable("SHARDRUN_TOKEN");
  if (text == nullptr || *text == '\0') {
    return std::nullopt;
  }
  const std::optional<Token> token = parse_token(text);
  if (!token) {
    throw Error(ErrorCode::usage,
                "SHARDRUN_TOKEN must be 64 hexadecimal digits, the same on every host: make one with "
                "'openssl rand -hex 32'");
  }
  return token;
}

std::string address_of_this_machine(const Variables& variable) {
  const char* const given = variable("SHARDRUN_ADDRESS");
  if (given != nullptr && *given != '\0') {
    return own_of("SHARDRUN_ADDRESS", given);
  }
  std::string address = address_of_route("198.51.100.1");  // this and the next are reserved for documentation
  if (address.empty()) {
    address = address_of_route("2001:db8::1");
  }
  if (address.empty()) {
    std::vector<std::string> own = own_addresses();
    std::erase_if(own, is_loopback);
    address = own.empty() ? "" : own.front();
  }
  if (address.empty()) {
    throw Error(ErrorCode::usage,
                "this machine has no network address that other machines could reach: set "
                "SHARDRUN_ADDRESS to one");
  }
  return address;
}

std::vector<std::string> resolve(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (failed != 0) {
    throw Error(ErrorCode::usage, fmt::format("the host '{}' has no address: {}", host, ::gai_strerror(failed)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  std::vector<std::string> addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
      if (each->ai_family == family) {
        addresses.push_back(text_of(each->ai_addr, each->ai_addrlen));
      }
    }
  }
  return addresses;
}

std::vector<std::string> resolve_for_others(std::string_view variable, const std::string& host) {
  std::vector<std::string> addresses = resolve(host);
  if (std::ranges::any_of(addresses, is_every_address)) {
    throw Error(ErrorCode::usage,
                fmt::format("{} = {} stands for every address of a host: give the one that the other ranks reach, or "
                            "127.0.0.1 where all are in one network namespace",
                            variable, host));
  }
  const std::string first = addresses.front();
  if (!is_numeric(host) && host != "localhost") {
    std::erase_if(addresses, is_loopback);
  }
  if (addresses.empty()) {
    throw Error(ErrorCode::usage,
                fmt::format("{} = {} resolves to {} here: give the address that others reach", variable, host, first));
  }
  return addresses;
}

bool is_own_address(const std::string& numeric_address) {
  const std::vector<std::string> own = own_addresses(true);
  return std::ranges::find(own, unmapped(numeric_address)) != own.end() || is_loopback(numeric_address);
}

std::string own_of(std::string_view variable, const std::string& host) {
  const std::vector<std::string> addresses = resolve_for_others(variable, host);
  const auto own = std::ranges::find_if(addresses, is_own_address);
  if (own == addresses.end()) {
    throw Error(ErrorCode::usage, fmt::format("{} = {} is no address of this machine, which has {}", variable, host,
                                              fmt::join(own_addresses(), ", ")));
  }
  return *own;
}

void require_loopback() {
  if (address_of_route("127.0.0.1").empty()) {
    throw Error(
        ErrorCode::usage,
        "this machine's loopback interface is down, by which ranks of one machine meet: 'ip link set lo up' (as "
        "root, in this network namespace) brings it up");
  }
}

bool is_every_address(const std::string& numeric_address) {
  boost::system::error_code failed;
  const auto address = boost::asio::ip::make_address(numeric_address, failed);
  const bool is_mapped = address.is_v6() && address.to_v6().is_v4_mapped();
  return !failed && (address.is_unspecified() ||
                     (is_mapped && make_address_v4(boost::asio::ip::v4_mapped, address.to_v6()).is_unspecified()));
}

bool is_loopback(const std::string& numeric_address) {
  boost::system::error_code failed;
  return boost::asio::ip::make_address(numeric_address, failed).is_loopback() && !failed;
}

std::string encode(const Invitation& invitation) {
  std::string text = fmt::format("{} {} ", invitation.master.address, invitation.master.port);
  for (const std::uint8_t byte : invitation.token) {
    text += fmt::format("{:02x}", byte);
  }
  text.resize(invitation_bytes, '\0');
  return text;
}

Invitation decode_invitation(std::string_view bytes) {
  std::istringstream words{std::string(bytes.substr(0, bytes.find('\0')))};
  Invitation invitation;
  std::string token;
  words >> invitation.master.address >> invitation.master.port >> token;
  const std::optional<Token> parsed = parse_token(token);
  if (!words || !parsed) {
    throw Error(ErrorCode::io, "what rank 0 told of where ranks meet makes no sense");
  }
  invitation.token = *parsed;
  return invitation;
}

}  // namespace shardrun::launch
