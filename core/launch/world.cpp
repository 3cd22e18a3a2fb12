#include "core/launch/world.h"

#include <arpa/inet.h>
#include <fmt/format.h>
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
  return Error(ErrorCode::usage,
               fmt::format("this process was started as one of several ranks, but {}; '--launch here' starts all ranks "
                           "of the job here, whatever these variables say",
                           what));
}

/// Reads variables that belong together.
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

  /// The world by a launcher's variables: rank and size, and the local ones if both are set.
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

/// The number of tasks of the step of Slurm that this process belongs to; nothing if it belongs to none.
std::optional<int> tasks_of_slurm_step(const Reader& reader) {
  if (!reader.has("SLURM_PROCID") || !reader.has("SLURM_STEP_ID") || !reader.has("SLURM_STEP_NUM_TASKS")) {
    return std::nullopt;
  }
  return reader.number("SLURM_STEP_NUM_TASKS", 1, most_ranks);
}

/// Whether PMI's variables are those that Slurm gives to a step of one task. The only rank of an mpiexec whose helper
/// was started by srun has the same, and also what mpiexec tells of its machine.
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
  if (reader.has("RANK") && reader.has("WORLD_SIZE")) {
    World world =
        reader.world("whoever set RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
    world.is_by_variables = true;
    return world;
  }
  return std::nullopt;
}

/// The local address of packets to other machines; "" if there is no route. Sends nothing.
std::string address_of_default_route() {
  const files::FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in elsewhere = {};
  elsewhere.sin_family = AF_INET;
  elsewhere.sin_port = htons(9);
  elsewhere.sin_addr.s_addr = htonl(0xC6336401);  // 198.51.100.1, reserved for documentation
  sockaddr_in own = {};
  socklen_t size = sizeof(own);
  std::array<char, INET_ADDRSTRLEN> text = {};
  const bool known = socket.is_open() &&
                     ::connect(socket.get(), reinterpret_cast<sockaddr*>(&elsewhere), sizeof(elsewhere)) == 0 &&
                     ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
                     ::inet_ntop(AF_INET, &own.sin_addr, text.data(), text.size()) != nullptr;
  return known ? text.data() : "";
}

std::string address_of_first_interface() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) {
    return "";
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(all, ::freeifaddrs);
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr != nullptr && each->ifa_addr->sa_family == AF_INET && (each->ifa_flags & IFF_UP) != 0 &&
        (each->ifa_flags & IFF_LOOPBACK) == 0) {
      std::array<char, INET_ADDRSTRLEN> text = {};
      const auto* const address = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
      return ::inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size()) != nullptr ? text.data() : "";
    }
  }
  return "";
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
    return resolve_for_others("SHARDRUN_ADDRESS", given);
  }
  std::string address = address_of_default_route();
  if (address.empty()) {
    address = address_of_first_interface();
  }
  if (address.empty()) {
    throw Error(ErrorCode::usage,
                "this machine has no network address that other machines could reach: set "
                "SHARDRUN_ADDRESS to one");
  }
  return address;
}

std::string resolve(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (failed != 0) {
    throw Error(ErrorCode::usage, fmt::format("the host '{}' has no address: {}", host, ::gai_strerror(failed)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  const addrinfo* best = found;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    best = best->ai_family != AF_INET && each->ai_family == AF_INET ? each : best;
  }
  std::array<char, NI_MAXHOST> text = {};
  ::getnameinfo(best->ai_addr, best->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return text.data();
}

std::string resolve_for_others(std::string_view variable, const std::string& host) {
  std::string address = resolve(host);
  if (is_every_address(address)) {
    throw Error(ErrorCode::usage,
                fmt::format("{} = {} stands for every address of a host: give the one that the other ranks reach, or "
                            "127.0.0.1 where all are in one network namespace",
                            variable, host));
  }
  if (is_loopback(address) && !is_numeric(host) && host != "localhost") {
    throw Error(ErrorCode::usage, fmt::format("{} = {} resolves to {} here: give the address that others reach",
                                              variable, host, address));
  }
  return address;
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
